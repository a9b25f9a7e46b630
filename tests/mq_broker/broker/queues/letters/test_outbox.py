"""What a queue group has decided reaches each partition in order and once; the partitions and the journal are played by
the test."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.queues.letters import outbox as outbox_module
from mq_broker.broker.queues.letters.outbox import Outbox
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import LeaseId, OutputLine, Reason, Send, Sent
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    NotEnoughReplicas,
    StagedBatchMissing,
    TritonMQError,
    UnknownTopic,
)
from mq_protocol.queues.work_keys import WorkPlace, query_id_of
from tests.coroutines import real_time
from tests.mq_broker.broker.queues.partitions import rounds

OUT, OTHER, DELETED = "1" * 32, "2" * 32, "3" * 32
SOURCE = "0" * 32


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried again in the next turn."""
    monkeypatch.setattr(outbox_module, "AGAIN_S", (0.0,) * 6)
    monkeypatch.setattr(outbox_module, "MISSING_AGAIN_S", 0.0)


class World:
    """A group in a partition that is led here. `asked`: what partitions were asked to publish; they say what stands in
    `says`, by topic, and nothing while one is in `holds`. `written`: numbers that the journal knows as published."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, list[bytes]]] = []
        self.says: dict[str, list[TritonMQError | None]] = {}
        self.journal_says: list[TritonMQError | None] = []
        self.written: list[list[int]] = []
        self.missed: list[int] = []
        self.gone: set[str] = set()
        self.holds: dict[str, asyncio.Event] = {}
        self.work: dict[str, WorkState] = {"g": WorkState(1, 0)}
        self.n = 0
        self.gathering: Any = SimpleNamespace(
            closed=False,
            group="g",
            partition=SimpleNamespace(
                name="t-4",
                number=4,
                topic=SimpleNamespace(spec=SimpleNamespace(topic_id=SOURCE)),
                replica=SimpleNamespace(machine=SimpleNamespace(work=self.work)),
            ),
            add=self._add,
        )
        shell: Any = SimpleNamespace(spawn=lambda work, what: asyncio.create_task(work, name=what))
        topics: Any = SimpleNamespace(with_id=self._with_id, is_gone=self._is_gone)
        transactions: Any = SimpleNamespace(ask_leader=self._ask, publish=None)
        self.outbox = Outbox(shell, topics, transactions)
        self.outbox.missing = self._missing

    @property
    def state(self) -> WorkState:
        return self.work["g"]

    def decide(self, *lines: tuple[str, int, bytes]) -> int:
        """An entry is committed with these outputs: topic, partition and the names of batches, one byte each."""
        self.n += 1
        made = tuple(
            OutputLine(topic, number, tuple(bytes([each]) for each in uuids)) for topic, number, uuids in lines
        )
        self.state.apply(Send((), Reason.OUTPUT, self.n, made, "", 0), LeaseId(1, self.n, 0), 10)
        return self.n

    async def publish(self) -> None:
        self.outbox.look(self.gathering, self.state)
        await rounds()

    @property
    def alarm(self) -> str:
        return self.outbox.alarm("t-4", "g")

    def _with_id(self, topic_id: str) -> Any:
        names = {OUT: "out", OTHER: "other"}
        found = SimpleNamespace(spec=SimpleNamespace(name=names[topic_id])) if topic_id in names else None
        return found if topic_id not in self.gone else None

    async def _is_gone(self, topic_id: str) -> bool:
        return topic_id in self.gone

    async def _ask(self, name: str, number: int, method: str, request: Any, *_: object) -> Any:
        assert (method, request.topic, request.partition) == ("Publish", name, number)
        assert request.key == pb.TransactionKey(query_id=query_id_of(WorkPlace(SOURCE, 4, "g")), sink=name)
        self.asked.append((name, number, request.batch_id, list(request.uuids)))
        if name in self.holds:
            await self.holds[name].wait()
        answers = self.says.get(name, [])
        error = answers.pop(0) if answers else None
        if error is not None:
            raise error
        return pb.PublishResponse()

    async def _missing(self, gathering: Any, n: int) -> None:
        assert gathering is self.gathering
        self.missed.append(n)

    def _add(self, own: Any) -> None:
        error = self.journal_says.pop(0) if self.journal_says else None
        if error is None:
            assert own.life == self.state.life
            self.written.append([step.n for step in own.steps])
            for step in own.steps:
                assert isinstance(step, Sent)
                self.state.apply(step, LeaseId(1, 99, 0), 10)
        own.done(error)


@real_time
async def test_decisions_that_wait_together_are_one_request_with_the_highest_number() -> None:
    world = World()
    world.holds["out"] = asyncio.Event()
    world.decide((OUT, 2, b"a"))
    await world.publish()
    world.decide((OUT, 2, b"bc"))
    world.decide((OUT, 2, b"d"))
    await world.publish()
    await world.publish()
    assert world.asked == [("out", 2, 1, [b"a"])], "one request at a time, since numbers are taken in order"
    world.holds["out"].set()
    await rounds()
    assert world.asked[1:] == [("out", 2, 3, [b"b", b"c", b"d"])]
    assert sorted(n for some in world.written for n in some) == [1, 2, 3]
    assert (world.state.outbox, world.alarm) == ({}, "")
    world.decide((OUT, 2, b"e"))
    await world.publish()
    assert world.asked[2:] == [("out", 2, 4, [b"e"])]


@real_time
async def test_a_request_has_no_more_batches_than_it_may_and_one_decision_at_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "OUTPUT_BATCHES_MAX", 3)
    world = World()
    for uuids in (b"ab", b"c", b"d", b"efgh", b"i"):
        world.decide((OUT, 0, uuids))
    await world.publish()
    assert [(n, b"".join(uuids)) for _, _, n, uuids in world.asked] == [
        (2, b"abc"),
        (3, b"d"),
        (4, b"efgh"),
        (5, b"i"),
    ]
    assert not world.state.outbox


@real_time
async def test_a_partition_that_does_not_take_them_holds_up_no_other_and_is_asked_until_it_does() -> None:
    world = World()
    refusals = outbox_module.ALARM_AFTER
    world.says["out"] = [NotEnoughReplicas("1 of 2")] * (refusals - 1)
    world.decide((OUT, 0, b"a"))
    world.decide((OTHER, 0, b"b"))
    alarms: set[str] = set()
    world.outbox.look(world.gathering, world.state)
    for _ in range(40):
        await asyncio.sleep(0)
        alarms.add(world.alarm)
    assert alarms == {""}, "an operator is told only if it lasts"
    assert world.written[0] == [2]
    assert not world.state.outbox
    assert len(world.asked) == refusals + 1
    world.says["out"] = [NotEnoughReplicas("1 of 2")] * refusals
    world.decide((OUT, 0, b"c"))
    world.outbox.look(world.gathering, world.state)
    for _ in range(40):
        await asyncio.sleep(0)
        alarms.add(world.alarm)
    assert alarms == {"", "1 of 2"}
    assert (world.alarm, world.state.outbox) == ("", {}), "and that it is over"


@real_time
async def test_a_batch_that_is_missing_holds_up_only_what_comes_after_it_and_is_told_at_once() -> None:
    world = World()
    for uuids in (b"a", b"b", b"c"):
        world.decide((OUT, 0, uuids))
    # together, the first one alone, the second one alone twice
    world.says["out"] = [StagedBatchMissing("b"), None, StagedBatchMissing("b"), StagedBatchMissing("b")]
    alarms = set()
    world.outbox.look(world.gathering, world.state)
    for _ in range(60):
        await asyncio.sleep(0)
        alarms.add(world.alarm)
    assert [(n, b"".join(uuids)) for _, _, n, uuids in world.asked[:3]] == [(3, b"abc"), (1, b"a"), (3, b"bc")]
    assert world.missed, "whoever can make it again is asked to"
    assert set(world.missed) == {2}
    assert any("number 2 is not there any more: b" in alarm for alarm in alarms)
    assert (world.alarm, world.state.outbox) == ("", {})


@real_time
async def test_what_was_staged_in_a_topic_that_is_gone_counts_as_published() -> None:
    for error in (None, UnknownTopic("deleted meanwhile")):
        world = World()
        world.gone.add(DELETED if error is None else OUT)
        if error is not None:
            world.gone.clear()
            world.says["out"] = [error]
        world.decide((DELETED if error is None else OUT, 0, b"a"))
        world.outbox.look(world.gathering, world.state)
        await asyncio.sleep(0)
        world.gone |= {OUT, DELETED}
        await rounds()
        assert world.written == [[1]]


@real_time
async def test_a_topic_that_is_not_known_here_yet_is_waited_for() -> None:
    world = World()
    world.decide((DELETED, 0, b"a"))
    await world.publish()
    assert world.written == []
    assert "has not heard of it yet" in world.alarm
    world.gone.add(DELETED)
    await rounds()
    assert world.written == [[1]]
