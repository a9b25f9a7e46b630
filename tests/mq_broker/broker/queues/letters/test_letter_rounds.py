"""How dead letters are made, staged and decided, round by round. The group is a real one; the dead-letter topic and its
leader are played."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.queues.group.requests import OwnSteps
from mq_broker.broker.queues.letters.dead_letters import DECODED_AT_ONCE, DeadLetters
from mq_broker.broker.queues.letters.leftovers import Leftovers
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.entries import Work
from mq_broker.core.work.settling import Failed, Outcome, Rejected
from mq_broker.core.work.steps import OutputLine, Reason, Reset, Send
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, decode_batch, encode_batch, schema_fingerprint
from mq_protocol.errors import NotLeader, OutcomeUnknown, Overloaded, StorageFailed
from mq_protocol.limits import BATCH_BYTES_FLOOR
from mq_protocol.queues.work_keys import WorkPlace, query_id_of, run_of_epoch
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import EPOCH, TOPIC, Around, Group, Led, lease_of

BOUND = {"batch_bytes_max": str(BATCH_BYTES_FLOOR)}
DEAD, NARROW = (
    Topic.of(TopicSpec("t.dead", "1" * 32, ((2,),) * 2, settings=settings))
    for settings in (BOUND, {**BOUND, "batch_decoded_bytes_max": str(BATCH_BYTES_FLOOR)})
)
LONG_S = 600.0


class World:
    """Partition 7 of topic `t`, of which the group `g` sends dead letters to `t.dead`, which has two partitions. The
    value of a record is its offset, and so many bytes."""

    def __init__(self, *targets: Topic, value_bytes: int = 0, even: bool = False, per_batch: int = 5) -> None:
        """`even`: the values can be compressed, and are."""
        led, chance = Led(number=7), Random(1)
        for first in range(0, 10, per_batch):
            columns: dict[str, list[Any]] = {name: [None] * per_batch for name in RECORD_SCHEMA.names}
            more = [bytes(value_bytes) if even else chance.randbytes(value_bytes) for _ in range(per_batch)]
            columns["value"] = [b"%d " % (first + at) + more[at] for at in range(per_batch)]
            rows = pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)
            led.put(encode_batch(rows, "zstd").to_pybytes(), per_batch)
        self.around: Any = Around(*targets)
        self.letters = DeadLetters(*[self.around] * 5)
        self.group = Group(led=led, dead_letter="t.dead", delivery_limit=1, retry_ms=0)
        self.group.on_doomed = self.letters.look

    async def doom(self, *ranges: tuple[int, int], outcome: Outcome | None = None) -> None:
        lease = await lease_of(self.group, "m", 10)
        await self.group.outcome(outcome or Rejected("bad"), "m", lease, *ranges).answered

    async def doom_until_staged(self, *ranges: tuple[int, int]) -> None:
        """And nobody says yet that they are."""
        self.around.holds["Stage"] = asyncio.Event()
        await self.doom(*ranges)
        await asyncio.sleep(1)

    async def goes_on(self) -> None:
        self.around.holds.pop("Stage").set()
        await asyncio.sleep(1)

    @property
    def staged(self) -> list[list[int]]:
        """The records of each batch of letters that was staged."""
        return [
            [int(row["value"].split()[0]) for row in decode_batch(each.payload, RECORD_SCHEMA).to_pylist()]
            for each in self.around.of("Stage")
        ]

    @property
    def discarded(self) -> list[bytes]:
        return [uuid for each in self.around.of("Discard") for uuid in each.uuids]

    @property
    def decided(self) -> list[Send]:
        """All that is in the journal."""
        return [step for each in self.group.led.proposed for step in each.steps if isinstance(step, Send)]

    @property
    def parked(self) -> list[tuple[int, int]]:
        return [run[:2] for run in self.group.state.parked()]

    @property
    def alarm(self) -> str:
        return self.letters.alarm("t-7", "g")

    @property
    def in_hand(self) -> frozenset[bytes]:
        return self.letters.in_hand("t-7", "g")


@virtual_time
async def test_letters_are_staged_in_the_partition_of_their_number_and_decided_by_their_batch() -> None:
    world = World(DEAD)
    await world.doom_until_staged((1, 2), (7, 9))
    world.group.led.keeps_up = False
    await world.goes_on()
    [stage], [send] = world.around.of("Stage"), world.decided
    assert world.in_hand == {stage.uuid}, "while it may be decided it is no leftover"
    leftovers, status = Leftovers(*[world.around] * 3, world.letters), status_of(stage)
    world.around.leds = [world.group.led]
    world.around.topics.append(TOPIC)
    asked = asyncio.create_task(leftovers.attempt_status(status, LONG_S))
    await asyncio.sleep(1)
    world.group.led.commit()
    told = await asked
    assert (told.over, told.kept) == (True, stage.uuid)
    await asyncio.sleep(LONG_S)
    assert (world.staged, stage.partition, stage.record_count) == ([[1, 7, 8]], 1, 3)
    assert world.group.led.reads == [(1, 2), (7, 8)], "each stored batch once"
    assert stage.key == pb.TransactionKey(query_id=query_id_of(WorkPlace(TOPIC.spec.topic_id, 7, "g")), sink="t.dead")
    assert (stage.topic_id, stage.run_id) == (DEAD.spec.topic_id, run_of_epoch(EPOCH))
    assert stage.schema_fingerprint == schema_fingerprint(RECORD_SCHEMA)
    assert (send.ranges, send.reason) == (((1, 2), (7, 9)), Reason.REJECTED)
    assert send.lines == (OutputLine(DEAD.spec.topic_id, 1, (stage.uuid,)),)
    assert (world.in_hand, world.discarded, world.alarm) == (frozenset(), [], "")


def status_of(stage: pb.StageRequest) -> pb.AttemptStatusRequest:
    return pb.AttemptStatusRequest(
        topic="t", topic_id=TOPIC.spec.topic_id, partition=7, group="g", run_id=stage.run_id, uuids=stage.uuid
    )


@virtual_time
async def test_letters_of_records_that_failed_and_of_such_that_were_rejected_are_batches_of_their_own() -> None:
    world = World()  # and the topic is made
    lease = await lease_of(world.group, "m", 10)
    failed = world.group.outcome(Failed("boom"), "m", lease, (1, 3))
    rejected = world.group.outcome(Rejected("bad"), "m", lease, (2, 3), (6, 8))
    await asyncio.gather(failed.answered, rejected.answered)
    await asyncio.sleep(LONG_S)
    assert sorted((each.reason, each.ranges) for each in world.decided) == [
        (Reason.REJECTED, ((6, 8),)),
        (Reason.DELIVERY_LIMIT, ((1, 3),)),
    ]
    assert sorted(world.staged) == [[1, 2], [6, 7]]


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize(("fit", "most"), [(15, 8), (6, 4), (3, 2), (1, 0)])
@virtual_time
async def test_letters_that_are_too_large_together_go_in_halves_and_one_that_is_too_large_alone_is_parked(
    fit: int, most: int, even: bool
) -> None:
    world = World(NARROW if even else DEAD, value_bytes=BATCH_BYTES_FLOOR // fit, even=even)
    await world.doom((0, 8))
    await asyncio.sleep(LONG_S)
    sent = sorted(offset for batch in world.staged for offset in batch)
    assert (sent, world.parked) == ((list(range(8)), []) if most else ([], [(0, 8)]))
    assert max(map(len, world.staged), default=0) == most
    assert len(world.decided) == len(world.staged)


@virtual_time
async def test_stored_batches_that_are_large_once_they_are_decompressed_have_a_round_each() -> None:
    world = World(value_bytes=DECODED_AT_ONCE // 2, even=True, per_batch=2)
    await world.doom((0, 4))
    await asyncio.sleep(LONG_S)
    assert world.staged == [[0, 1], [2, 3]]
    assert [step.ranges for step in world.decided] == [((0, 2),), ((2, 4),)]


# ---------------------------------------------------------------- what goes wrong


@virtual_time
async def test_what_passes_is_tried_again_with_growing_pauses_and_told_after_the_third_time() -> None:
    world = World(DEAD)
    world.around.says["Stage"] = [Overloaded("busy")] * 7
    tried: list[tuple[int, str]] = []
    loop = asyncio.get_running_loop()
    world.around.on_ask = lambda method, _: tried.append((int(loop.time()), world.alarm)) if method == "Stage" else None
    await world.doom((1, 2))
    await asyncio.sleep(LONG_S)
    times = [at for at, _ in tried]
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == [1, 2, 5, 10, 30, 30, 30]
    assert [bool(alarm) for _, alarm in tried] == [False, False, False, True, True, True, True, True]
    assert tried[3][1] == "dead letters wait for topic t.dead: busy"
    stages = [each.uuid for each in world.around.of("Stage")]
    assert (world.discarded, world.alarm) == (stages[:-1], ""), "what may have been staged is not kept"
    assert [step.lines[0].uuids for step in world.decided] == [(stages[-1],)]


@virtual_time
async def test_letters_of_which_a_record_was_taken_back_are_discarded_and_made_anew_of_the_others() -> None:
    world = World(DEAD)
    await world.doom_until_staged((1, 4))
    world.group.led_group.add(OwnSteps(1, (Reset(((2, 3),)),)))
    await asyncio.sleep(1)
    await world.goes_on()
    assert world.staged == [[1, 2, 3], [1, 3]]
    first, second = world.around.of("Stage")
    assert [(step.ranges, step.lines[0].uuids) for step in world.decided] == [(((1, 2), (3, 4)), (second.uuid,))]
    assert (world.discarded, world.in_hand) == ([first.uuid], frozenset())


@virtual_time
async def test_what_retention_drops_while_its_letters_wait_is_no_letter() -> None:
    world = World(DEAD)
    world.around.says["Stage"] = [Overloaded("busy")]
    await world.doom((1, 7))
    await asyncio.sleep(0.5)
    world.group.led.trim(6)
    await asyncio.sleep(LONG_S)
    assert (world.staged, [step.ranges for step in world.decided]) == ([[1, 2, 3, 4, 5, 6], [6]], [((6, 7),)])


@virtual_time
async def test_what_retention_drops_while_its_letters_are_made_holds_up_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(DEAD)
    world.around.on_get = lambda _: world.group.led.trim(6)
    await world.doom((1, 7))
    await asyncio.sleep(LONG_S)
    assert (world.staged, caplog.messages) == ([[6]], [])


@virtual_time
async def test_letters_that_are_staged_when_the_leadership_ends_are_not_decided() -> None:
    world = World(DEAD)
    world.around.on_ask = lambda method, _: method == "Stage" and world.group.led_group.close(NotLeader("another"))
    await world.doom((1, 2))
    await asyncio.sleep(LONG_S)
    assert (world.decided, world.discarded) == ([], [world.around.of("Stage")[0].uuid])


@pytest.mark.parametrize(("error", "kept"), [(StorageFailed("full"), False), (OutcomeUnknown("who knows"), True)])
@virtual_time
async def test_letters_that_were_not_decided_are_discarded_unless_they_may_be_yet(
    error: StorageFailed | OutcomeUnknown, kept: bool
) -> None:
    world = World(DEAD)
    await world.doom_until_staged((1, 2))
    world.group.led.keeps_up = False
    await world.goes_on()
    [stage] = world.around.of("Stage")
    world.group.led.cut(error)
    await asyncio.sleep(0.1)
    assert world.discarded == ([] if kept else [stage.uuid])
    assert (stage.uuid in world.in_hand) is kept


# ---------------------------------------------------------------- letters that were lost


def decided(world: World, reason: Reason, *ranges: tuple[int, int]) -> None:
    """By a former leader."""
    send = Send(ranges, reason, 5, (OutputLine(DEAD.spec.topic_id, 1, (b"u" * 16,)),))
    world.group.led.apply("g", 1, send, epoch=EPOCH - 1)


@pytest.mark.parametrize(
    ("reason", "trimmed", "gone", "number", "again"),
    [
        (Reason.REJECTED, 0, False, 5, [[1, 2]]),
        (Reason.REJECTED, 0, False, 6, []),
        (Reason.REJECTED, 2, False, 5, []),
        (Reason.REJECTED, 5, False, 5, []),
        (Reason.REJECTED, 0, True, 5, []),
        (Reason.OUTPUT, 0, False, 5, []),
    ],
    ids=[
        "they are here",
        "they are published",
        "one was dropped",
        "all were dropped",
        "their topic is gone",
        "outputs",
    ],
)
@virtual_time
async def test_letters_that_were_lost_are_made_again_if_they_can_be_made_as_they_were(
    reason: Reason, trimmed: int, gone: bool, number: int, again: list[list[int]]
) -> None:
    world = World(DEAD)
    decided(world, reason, (1, 3))
    world.group.led.trim(trimmed)
    if gone:
        world.around.gone.add(DEAD.spec.topic_id)
    await world.letters.stage_again(world.group.led_group, number)
    assert world.staged == again
    assert {each.uuid for each in world.around.of("Stage")} <= {b"u" * 16}
    assert not [each for each in world.group.led.proposed if isinstance(each, Work) and each.steps]
