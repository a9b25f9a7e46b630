"""How dead letters are made, staged and decided, round by round. The group, the dead-letter topic and its partitions
are played by the test."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.queues.group.requests import OwnSteps, Sending
from mq_broker.broker.queues.letters import dead_letters as module
from mq_broker.broker.queues.letters.dead_letters import DeadLetters
from mq_broker.broker.queues.policy.declared import Queue
from mq_broker.core.work.settling import Answer
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.core.work.steps import LeaseId, OutputLine, Park, Reason, Send, Step
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, decode_batch, encode_batch, schema_fingerprint
from mq_protocol.errors import (
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    TritonMQError,
    UnknownTopic,
)
from mq_protocol.queues.dead_letters import HEADERS
from mq_protocol.queues.settings import QueueSettings
from mq_protocol.queues.work_keys import WorkPlace, query_id_of, run_of_epoch
from mq_protocol.wire.ipc_message import read_record_batch_message
from tests.coroutines import real_time

SOURCE, TARGET = "0" * 32, "1" * 32
PER_BATCH = 5
FAILED, REJECTED = Mark(2, 2, error="boom"), Mark(1, rejected=True, error="bad")


def payload(first: int, hops: dict[int, int]) -> bytes:
    """A stored batch of records whose value is their offset."""
    offsets = range(first, first + PER_BATCH)
    headers = [[{"key": HEADERS["hops"], "value": b"%d" % hops[at]}] if at in hops else [] for at in offsets]
    columns = [
        pa.array([None] * PER_BATCH, pa.binary()),
        pa.array([b"%d" % at for at in offsets], pa.binary()),
        pa.array(headers, RECORD_SCHEMA.field("headers").type),
        pa.array([0] * PER_BATCH, pa.timestamp("us", tz="UTC")),
    ]
    return encode_batch(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)).to_pybytes()


class World:
    """Partition 7 of topic `t`, of which the group `g` sends dead letters to `t.dead`, which has two partitions.
    `staged`: what letters were staged: batch and values; `decided`: what the group was asked to send, answered by what
    stands in `answers`. `steps`: what was written besides. `why`: the records are not doomed, but too old, or too many.
    `stages`: what staging is answered with."""

    def __init__(self, *doomed: tuple[int, int, Mark]) -> None:
        self.marks = {offset: mark for first, end, mark in doomed for offset in range(first, end)}
        self.doomed = set(self.marks)
        self.staged: list[tuple[bytes, list[int]]] = []
        self.decided: list[Sending] = []
        self.discarded: list[bytes] = []
        self.answers: list[Answer | TritonMQError] = []
        self.stages: list[TritonMQError | None] = []
        self.steps: list[Step] = []
        self.hops: dict[int, int] = {}
        self.trimmed = 0
        self.why: Reason | None = None
        self.reads = 0
        self.in_hand: list[frozenset[bytes]] = []
        self.slept: list[float] = []
        self.alarms: list[str] = []
        self.work: dict[str, WorkState] = {"g": WorkState(1, 0)}
        self.settings = QueueSettings(dead_letter="t.dead")
        spec = SimpleNamespace(name="t", topic_id=SOURCE)
        self.partition: Any = SimpleNamespace(
            name="t-7",
            number=7,
            serving=True,
            topic=SimpleNamespace(spec=spec, schema=RECORD_SCHEMA),
            replica=SimpleNamespace(machine=SimpleNamespace(work=self.work)),
            read=self._read,
            not_leader=lambda: NotLeader("t-7 is led by broker 2", 2, 4),
        )
        self.gathering: Any = SimpleNamespace(
            partition=self.partition,
            group="g",
            epoch=3,
            closed=False,
            queue=Queue("g", 1, 0, self.settings),
            take_doomed=self._take_doomed,
            doomed_again=lambda runs: self.doomed.update(at for first, end, _ in runs for at in range(first, end)),
            add=self._add,
            send=self._send,
        )
        self.target: Any = SimpleNamespace(
            spec=SimpleNamespace(name="t.dead", topic_id=TARGET),
            partitions=2,
            schema=RECORD_SCHEMA,
            settings=SimpleNamespace(batch_bytes_max=1 << 20, batch_decoded_bytes_max=1 << 26),
        )
        self.there = True
        self.tasks: list[asyncio.Task[None]] = []
        shell: Any = SimpleNamespace(spawn=self._spawn)
        topics: Any = SimpleNamespace(get=self._get, with_id=lambda _: self.target if self.there else None)
        admin: Any = SimpleNamespace(make_like=self._make_like)
        asking: Any = SimpleNamespace(ask_leader=lambda *asked: self.ask(*asked), discard=None)
        self.letters = DeadLetters(shell, topics, admin, asking, SimpleNamespace(stage=None))  # type: ignore[arg-type]

    async def send(self) -> None:
        """Until nothing is doomed any more."""
        self.letters.look(self.gathering)
        [sending] = self.tasks
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module.asyncio, "sleep", self._sleep)
            await sending
        for _ in range(5):
            await asyncio.sleep(0)
        self.letters.close()

    def _spawn(self, work: Any, what: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work, name=what))
        return self.tasks[-1]

    async def _sleep(self, seconds: float) -> None:
        if seconds:
            self.slept.append(seconds)
            self.alarms.append(self.letters.alarm("t-7", "g"))

    @property
    def sent(self) -> list[tuple[Reason, tuple[tuple[int, int], ...]]]:
        return [(each.send.reason, each.send.ranges) for each in self.decided]

    def _take_doomed(self, most: int, reason: Reason | None) -> list[tuple[int, int, Mark]]:
        if reason is not self.why:
            return []
        taken, self.doomed = sorted(self.doomed)[:most], set()
        return [(at, at + 1, self.marks[at]) for at in taken]

    def _read(self, offset: int, end: int, bytes_max: int) -> list[Any]:
        if offset < self.trimmed:
            raise OffsetOutOfRange("retention dropped it")
        self.reads += 1
        base = offset - offset % PER_BATCH
        batch = SimpleNamespace(base_offset=base, record_count=PER_BATCH, timestamp_us=1)
        return [(batch, payload(base, self.hops))]

    async def _get(self, name: str) -> Any:
        assert name == "t.dead"
        if not self.there:
            raise UnknownTopic("no such topic")
        return self.target

    async def _make_like(self, source: Any, name: str, schema: pa.Schema, deadline: float) -> Any:
        assert (source.spec.name, name, schema) == ("t", "t.dead", RECORD_SCHEMA)
        self.there = True
        return self.target

    async def ask(self, name: str, number: int, method: str, request: Any, *_: object) -> Any:
        assert (name, number, request.topic, request.partition) == ("t.dead", 1, "t.dead", 1), "that of its number"
        assert request.key == pb.TransactionKey(query_id=query_id_of(WorkPlace(SOURCE, 7, "g")), sink="t.dead")
        if method == "Discard":
            self.discarded += request.uuids
            return pb.DiscardResponse()
        assert (request.topic_id, request.run_id) == (TARGET, run_of_epoch(3))
        assert request.schema_fingerprint == schema_fingerprint(RECORD_SCHEMA)
        error = self.stages.pop(0) if self.stages else None
        self.in_hand.append(self.letters.in_hand("t-7", "g"))
        if error is not None:
            raise error
        values = [int(row["value"]) for row in decode_batch(request.payload, RECORD_SCHEMA).to_pylist()]
        assert request.record_count == len(values)
        self.staged.append((request.uuid, values))
        return pb.StageResponse()

    def _send(self, sending: Sending) -> None:
        self.decided.append(sending)
        self.in_hand.append(self.letters.in_hand("t-7", "g"))
        answer = self.answers.pop(0) if self.answers else Answer()
        if isinstance(answer, TritonMQError):
            sending.done(Answer(), answer)
        else:
            sending.done(answer)

    def _add(self, own: OwnSteps) -> None:
        assert own.life == 1
        self.steps += own.steps
        own.done()


@real_time
async def test_letters_are_staged_in_the_partition_of_their_number_and_decided_by_their_batch() -> None:
    world = World((7, 9, FAILED), (1, 2, FAILED))
    await world.send()
    [(batch, values)] = world.staged
    assert values == [1, 7, 8]
    [sending] = world.decided
    assert (sending.life, sending.send.reason, sending.send.ranges) == (1, Reason.DELIVERY_LIMIT, ((1, 2), (7, 9)))
    assert sending.send.lines == (OutputLine(TARGET, 1, (batch,)),)
    assert world.in_hand == [frozenset({batch})] * 2, "while it may be decided it is no leftover"
    assert not world.letters.in_hand("t-7", "g")
    assert (world.discarded, world.slept, world.letters.alarm("t-7", "g")) == ([], [], "")


@real_time
async def test_letters_that_are_too_large_together_go_in_halves_and_one_that_is_too_large_alone_is_parked() -> None:
    world = World((0, 4, FAILED))
    size = len(payload(0, {}))
    payloads = []

    async def ask(name: str, number: int, method: str, request: Any, *rest: object) -> Any:
        payloads.append(request.payload)
        return await plain(name, number, method, request, *rest)

    plain = world.ask
    world.ask = ask  # type: ignore[method-assign]
    await world.send()
    decoded = read_record_batch_message(memoryview(payloads[0])).decoded_bytes()
    for setting, whole in (("batch_bytes_max", len(payloads[0])), ("batch_decoded_bytes_max", decoded)):
        for limit, batches in ((whole, [[0, 1, 2, 3]]), (whole - 1, [[0, 1], [2, 3]])):
            world = World((0, 4, FAILED))
            setattr(world.target.settings, setting, limit)
            await world.send()
            assert [values for _, values in world.staged] == batches, setting
            assert (world.steps, len(world.decided)) == ([], len(batches))
        world = World((0, 2, FAILED))
        setattr(world.target.settings, setting, 10)
        assert size > 10
        await world.send()
        assert world.steps == [Park(((0, 1),)), Park(((1, 2),))]
        assert world.staged == []


@real_time
async def test_a_batch_is_read_once_for_all_of_its_records_and_what_retention_dropped_is_passed_over() -> None:
    world = World((0, 1, FAILED), (2, 9, FAILED))
    await world.send()
    assert ([values for _, values in world.staged], world.reads) == ([[0, 2, 3, 4, 5, 6, 7, 8]], 2)
    world = World((0, 7, FAILED))
    world.trimmed = 6
    await world.send()
    assert [values for _, values in world.staged] == [[6]]


# ---------------------------------------------------------------- what goes wrong


@real_time
async def test_what_passes_is_tried_again_with_growing_pauses_and_told_after_the_third_time() -> None:
    world = World((1, 2, FAILED))
    world.stages = [Overloaded("busy")] * 7
    await world.send()
    assert world.slept == [1.0, 2.0, 5.0, 10.0, 30.0, 30.0, 30.0]
    assert [bool(alarm) for alarm in world.alarms] == [False, False, True, True, True, True, True]
    assert "dead letters wait for topic t.dead: busy" in world.alarms[2]
    assert (len(world.staged), world.letters.alarm("t-7", "g")) == (1, ""), "and it is over then"
    assert len(world.discarded) == 7, "what may have been staged is not kept"


@real_time
async def test_letters_that_are_staged_when_the_leadership_ends_are_not_decided() -> None:
    world = World((1, 2, FAILED))
    plain = world.ask

    async def ask(name: str, number: int, method: str, request: Any, *rest: object) -> Any:
        answer = await plain(name, number, method, request, *rest)
        world.gathering.closed = True
        return answer

    world.ask = ask  # type: ignore[method-assign]
    await world.send()
    assert world.decided == []
    assert world.discarded == [world.staged[0][0]]


# ---------------------------------------------------------------- letters that were lost


def decided(world: World, reason: Reason, *ranges: tuple[int, int]) -> None:
    step = Send(ranges, reason, 5, (OutputLine(TARGET, 1, (b"u" * 16,)),))
    world.work["g"].apply(step, LeaseId(3, 1, 0), 100)


@real_time
async def test_letters_that_cannot_be_made_as_they_were_are_not_made_again() -> None:
    world = World()
    decided(world, Reason.REJECTED, (1, 3))
    await world.letters.stage_again(world.gathering, 6)
    world.trimmed = 2
    await world.letters.stage_again(world.gathering, 5)
    world.trimmed = 3
    await world.letters.stage_again(world.gathering, 5)
    world.trimmed, world.there = 0, False
    await world.letters.stage_again(world.gathering, 5)
    del world.work["g"]
    world.there = True
    await world.letters.stage_again(world.gathering, 5)
    assert world.staged == []
    world = World()
    decided(world, Reason.OUTPUT, (1, 3))
    await world.letters.stage_again(world.gathering, 5)
    assert world.staged == [], "outputs are not the leader's to make"
    world.letters.close()
