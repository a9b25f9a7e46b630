"""What attempts of queue groups have staged and nobody will decide: who is asked, how much at once, what is kept."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.queues.letters import leftovers
from mq_broker.broker.queues.letters.leftovers import Leftovers
from mq_broker.core.entries import Discard, TransactionKey, Work
from mq_broker.core.machine.state import StagedBatch
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Lease, LeaseId, OutputLine, Reason, Reject, Send
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, NotLeader
from mq_protocol.queues.work_keys import WorkPlace, query_id_of, run_of_epoch, run_of_lease

TOPIC_ID = "0" * 32
KEY = TransactionKey(query_id_of(WorkPlace(TOPIC_ID, 0, "g")), "t.dead")
LED_IN = 3


def uuid(number: int) -> bytes:
    return number.to_bytes(16)


class World:
    """A partition with staged batches, each under a run, and the leader of the queue's partition. `asked`: about how
    many batches of which run, in order. `over`: what it says."""

    def __init__(self, *runs: str) -> None:
        staged = {
            uuid(n): StagedBatch(uuid(n), KEY, 0, run, 1, n, 0, 10, 10) for n, run in enumerate(runs)
        }  # fmt: skip
        self.staged = staged
        self.asked: list[tuple[str, int]] = []
        self.over = True
        self.state = WorkState(1, 0)
        self.in_hand: frozenset[bytes] = frozenset()
        self.refuses: Exception | None = None
        self.proved = 0
        machine = SimpleNamespace(staged=staged, work={"g": self.state})
        self.topic = SimpleNamespace(spec=SimpleNamespace(name="t"), partitions=1, internal=False)
        self.partition = SimpleNamespace(
            name="t.dead-0",
            serving=True,
            topic=self.topic,
            replica=SimpleNamespace(machine=machine, leader_epoch=LED_IN),
            ask=self._written,
        )
        shell: Any = SimpleNamespace(leader=lambda *_: self.partition)
        topics: Any = SimpleNamespace(with_id=lambda _: self.topic, meant=self._meant)
        transactions: Any = SimpleNamespace(ask_leader=self._ask_leader)
        letters: Any = SimpleNamespace(in_hand=lambda *_: self.in_hand)
        self.leftovers = Leftovers(shell, topics, transactions, letters)

    async def _meant(self, *_: str) -> Any:
        return self.topic

    async def _ask_leader(self, *of: Any) -> pb.AttemptStatusResponse:
        request: pb.AttemptStatusRequest = of[3]
        self.asked.append((request.run_id, len(request.uuids) // 16))
        return pb.AttemptStatusResponse(over=self.over)

    async def _written(self, operation: Any, _: float) -> None:
        if self.refuses is not None:
            raise self.refuses
        if isinstance(operation, Discard):
            for each in operation.uuids:
                del self.staged[each]
        else:
            assert isinstance(operation, Work)
            assert not operation.steps
            self.proved += 1

    def sweep(self) -> list[tuple[str, int]]:
        self.asked = []
        part: Any = self.partition
        asyncio.run(self.leftovers.look([part] if self.leftovers.which(part) else []))
        return self.asked

    def status(self, run: str, *numbers: int) -> pb.AttemptStatusResponse:
        request = pb.AttemptStatusRequest(
            topic="t", topic_id=TOPIC_ID, group="g", run_id=run, uuids=b"".join(map(uuid, numbers))
        )
        return asyncio.run(self.leftovers.attempt_status(request, 5.0))


def test_so_many_batches_of_an_attempt_are_asked_about_at_once_and_the_rest_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leftovers, "ASKED_AT_ONCE", 3)
    world = World(*[run_of_epoch(2)] * 5)
    assert world.sweep() == [], "they were not seen before"
    assert [world.sweep(), sorted(world.staged)] == [[("epoch:2", 3)], [uuid(3), uuid(4)]]
    assert [world.sweep(), world.staged, world.sweep()] == [[("epoch:2", 2)], {}, []]


def test_an_attempt_of_a_later_leader_is_for_that_one_to_judge() -> None:
    world = World()
    for run in (run_of_epoch(LED_IN + 1), run_of_lease(LED_IN + 1, 1, 0)):
        with pytest.raises(NotLeader, match="ask again"):
            world.status(run, 1)
    assert world.status(run_of_epoch(LED_IN), 1) == pb.AttemptStatusResponse(over=True)
    assert not world.status("another", 1).over


def test_what_is_about_to_be_decided_and_what_the_outbox_names_is_kept() -> None:
    world = World()
    world.in_hand = frozenset({uuid(1), uuid(9)})
    world.state.apply(Lease(((0, 2),), "m"), LeaseId(LED_IN, 7, 0), 10)
    world.state.apply(Reject(((0, 2),)), LeaseId(LED_IN, 8, 0), 10)
    line = OutputLine(bytes(16), 0, (uuid(2), uuid(3)))
    world.state.apply(Send(((0, 1),), Reason.REJECTED, LED_IN << 32, (line,)), LeaseId(LED_IN, 9, 0), 10)
    told = world.status(run_of_epoch(LED_IN), 1, 2, 4)
    assert (told.over, told.kept) == (True, uuid(1) + uuid(2))


def test_nothing_is_over_before_the_leader_knows_that_it_leads() -> None:
    world = World()
    world.status(run_of_epoch(2), 1)
    assert world.proved == 1
    world.refuses = NotLeader("another broker leads")
    with pytest.raises(NotLeader, match="another"):
        world.status(run_of_epoch(2), 1)


def test_too_many_or_broken_names_of_batches_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "ASKED_AT_ONCE", 3)
    world = World()
    with pytest.raises(InvalidRequest, match="at most 3"):
        world.status(run_of_epoch(2), 1, 2, 3, 4)
    request = pb.AttemptStatusRequest(topic="t", group="g", run_id="epoch:2", uuids=b"short")
    with pytest.raises(InvalidRequest, match="16 bytes"):
        asyncio.run(world.leftovers.attempt_status(request, 5.0))
