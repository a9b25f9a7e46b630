"""What attempts of queue groups have staged and nobody will decide: who is asked, how much at once, what is kept. The
partitions are real; the leader of the other one is played."""

from __future__ import annotations

from typing import Any

import pytest

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.queues.letters.dead_letters import DeadLetters
from mq_broker.broker.queues.letters.leftovers import ASKED_AT_ONCE, Leftovers
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.entries import TransactionKey
from mq_broker.core.work.steps import Accept, Begin, Lease, LeaseId, OutputLine, Reason, Send
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, NotLeader, Unreachable
from mq_protocol.queues.work_keys import WorkPlace, query_id_of, run_of_epoch, run_of_lease
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import EPOCH, TOPIC, Around, Led

DEAD = Topic.of(TopicSpec("t.dead", "1" * 32, ((1,),)))
KEY = TransactionKey(query_id_of(WorkPlace(TOPIC.spec.topic_id, 0, "g")), "t.dead")
HELD = LeaseId(EPOCH, 2, 0)


def uuid(number: int) -> bytes:
    return number.to_bytes(16)


class World:
    """Partition 0 of `t` with the queue group `g`, of which member `m` holds a lease of ten records, and that of
    `t.dead`, both led here."""

    def __init__(self) -> None:
        self.queue, self.staged = Led(100), Led(topic=DEAD)
        self.queue.apply("g", 1, Begin(0), Lease(((0, 10),), "m"))
        [lease] = self.queue.state.leases
        self.held = run_of_lease(*lease)
        self.around: Any = Around(TOPIC, DEAD)
        self.around.leds = [self.queue]
        self.around.answers["AttemptStatus"] = pb.AttemptStatusResponse(over=True)
        letters = DeadLetters(*[self.around] * 5)
        self.leftovers = Leftovers(self.around, self.around, self.around, letters)

    def stage(self, run: str, *numbers: int, key: TransactionKey = KEY) -> None:
        for number in numbers:
            self.staged.stage(uuid(number), key, run)

    async def sweep(self) -> list[tuple[str, int]]:
        """About how many batches of which attempt somebody was asked."""
        self.around.asked.clear()
        part: Any = self.staged
        await self.leftovers.look([part] if self.leftovers.which(part) else [])
        return [(each.run_id, len(each.uuids) // 16) for each in self.around.of("AttemptStatus")]

    @property
    def left(self) -> set[bytes]:
        return set(self.staged.machine.staged)

    async def status(self, run: str, *uuids: bytes) -> pb.AttemptStatusResponse:
        request = pb.AttemptStatusRequest(
            topic="t", topic_id=TOPIC.spec.topic_id, group="g", run_id=run, uuids=b"".join(uuids)
        )
        return await self.leftovers.attempt_status(request, 1e9)


@virtual_time
async def test_what_was_staged_before_the_last_sweep_and_is_nobodys_any_more_is_discarded_each_attempt_by_itself() -> (
    None
):
    world = World()
    world.stage("epoch:2", 1, 2)
    world.stage("lease:3.7.0", 3)
    world.stage("a member's own", 4, key=TransactionKey("not of a queue", "t.dead"))
    assert await world.sweep() == [], "they were not seen before"
    world.stage("epoch:2", 5)
    world.around.answers["AttemptStatus"] = pb.AttemptStatusResponse(over=True, kept=uuid(2))
    world.around.says["AttemptStatus"] = [None, Unreachable("away")]
    assert await world.sweep() == [("epoch:2", 2), ("lease:3.7.0", 1)]
    assert world.left == {uuid(2), uuid(3), uuid(4), uuid(5)}
    world.around.answers["AttemptStatus"] = pb.AttemptStatusResponse(over=False)
    await world.sweep()
    assert world.left == {uuid(2), uuid(3), uuid(4), uuid(5)}
    world.around.unknown.add(TOPIC.spec.topic_id)
    assert (await world.sweep(), len(world.left)) == ([], 4), "this broker may not have heard of the queue's topic yet"
    world.around.gone.add(TOPIC.spec.topic_id)
    assert (await world.sweep(), world.left) == ([], {uuid(4)})


@virtual_time
async def test_so_many_batches_of_an_attempt_are_asked_about_at_once_and_the_rest_later() -> None:
    world = World()
    world.stage("epoch:2", *range(ASKED_AT_ONCE + 2))
    await world.sweep()
    assert await world.sweep() == [("epoch:2", ASKED_AT_ONCE)]
    assert await world.sweep() == [("epoch:2", 2)]
    assert not world.left


@virtual_time
async def test_an_attempt_is_over_once_its_leader_or_its_lease_is() -> None:
    world = World()
    for run, over in (
        (run_of_epoch(EPOCH - 1), True),
        (run_of_epoch(EPOCH), True),  # what is in hand is kept by its name
        (run_of_lease(EPOCH - 1, 1, 0), True),
        (world.held, False),
        ("another", False),
    ):
        assert (await world.status(run, uuid(1))).over is over, run
    for run in (run_of_epoch(EPOCH + 1), run_of_lease(EPOCH + 1, 1, 0)):
        with pytest.raises(NotLeader, match="ask again"):
            await world.status(run, uuid(1))
    world.queue.apply("g", 1, Accept(((0, 10),)))
    assert (await world.status(world.held, uuid(1))).over


@virtual_time
async def test_what_the_outbox_names_is_kept() -> None:
    world = World()
    line = OutputLine(DEAD.spec.topic_id, 0, (uuid(2), uuid(3)))
    world.queue.apply("g", 1, Send((), Reason.OUTPUT, EPOCH << 32, (line,)))
    told = await world.status(run_of_epoch(EPOCH), uuid(1), uuid(2), uuid(4))
    assert (told.over, told.kept) == (True, uuid(2))


@virtual_time
async def test_nothing_is_over_before_the_leader_knows_that_it_leads() -> None:
    world = World()
    world.queue.refuses = NotLeader("another broker leads")
    with pytest.raises(NotLeader, match="another"):
        await world.status(run_of_epoch(2), uuid(1))


@virtual_time
async def test_too_many_or_broken_names_of_batches_are_refused() -> None:
    world = World()
    for uuids in ((uuid(1),) * (ASKED_AT_ONCE + 1), (b"short",)):
        with pytest.raises(InvalidRequest, match=f"at most {ASKED_AT_ONCE} UUIDs of 16 bytes"):
            await world.status(run_of_epoch(2), *uuids)
