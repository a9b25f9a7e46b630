"""What is said of a batch reaches whoever reads the index, by whatever way the batch got its offsets."""

from __future__ import annotations

import pytest

from mq_broker.broker.data.produce import _operation
from mq_broker.core.entries import (
    SCHEDULED,
    TTL_MS_MAX,
    Append,
    Attributes,
    Carry,
    Entry,
    Operation,
    Publish,
    Schedule,
    Stage,
    TransactionKey,
)
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Published
from mq_broker.storage.codec.frame import Place, decode, encode
from mq_broker.storage.codec.snapshot import decode_snapshot, encode_snapshot
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CorruptBatch
from mq_protocol.limits import PRIORITY_MAX

KEY = TransactionKey("q", "t")
HIGH = Attributes(9)
SHORT = Attributes(ttl_ms=7)
UUID = bytes(15) + b"\1"
PLACE = Place("topic", 1)


def applied(machine: PartitionMachine, *operations: Operation) -> list[int]:
    """The priorities of what became readable."""
    return [each.priority for each in readable(machine, *operations)]


def readable(machine: PartitionMachine, *operations: Operation) -> list[Published]:
    changes = [
        change
        for index, operation in enumerate(operations, 1)
        for change in machine.apply(Entry(index, 1, index, operation, UUID, 0 if isinstance(operation, Publish) else 3))
    ]
    return [change for change in changes if isinstance(change, Published)]


@pytest.mark.parametrize(
    "operations",
    [
        (Append(attributes=HIGH),),
        (Stage(KEY, 1, "run", HIGH), Publish(KEY, 1, (UUID,))),
        (Schedule(5, HIGH), Publish(SCHEDULED, 5, (UUID,))),
        (Schedule(5, HIGH), Carry(), Publish(SCHEDULED, 5, (UUID,))),
    ],
)
def test_the_priority_of_a_batch_is_known_once_it_is_readable(operations: tuple[Operation, ...]) -> None:
    assert applied(PartitionMachine(WindowBounds(100)), *operations) == [9]


def test_a_staged_batch_keeps_its_priority_in_a_snapshot() -> None:
    machine = PartitionMachine(WindowBounds(100))
    applied(machine, Stage(KEY, 1, "run", HIGH))
    stored = encode_snapshot(PLACE, Snapshot(1, 1, 1, machine.state()))
    later = PartitionMachine(WindowBounds(100), decode_snapshot(PLACE, stored).state)
    assert applied(later, Publish(KEY, 1, (UUID,))) == [9]


def test_the_offset_index_tells_the_priority_of_a_batch() -> None:
    index = OffsetIndex()
    assert not index.has_expiries
    batches = [Published(3 * n, 3, n + 1, n, 10, 10, priority) for n, priority in enumerate((4, 0, 31))]
    for batch in batches:
        index.append(batch)
    assert [index.find(offset).priority for offset in (0, 5, 8)] == [4, 0, 31]


@pytest.mark.parametrize(
    ("operations", "at_us"),
    [
        ((Append(attributes=SHORT),), 1),
        ((Stage(KEY, 1, "run", SHORT), Publish(KEY, 1, (UUID,))), 2),
        ((Schedule(5, SHORT), Publish(SCHEDULED, 5, (UUID,))), 2),
        ((Schedule(5, SHORT), Carry(), Publish(SCHEDULED, 5, (UUID,))), 3),
    ],
)
def test_the_life_of_a_batch_counts_from_when_it_is_readable(operations: tuple[Operation, ...], at_us: int) -> None:
    published = readable(PartitionMachine(WindowBounds(100)), *operations)
    assert [each.expires_us for each in published] == [at_us + 7_000]
    index = OffsetIndex()
    for each in published:
        index.append(each)
    assert index.has_expiries
    assert (index.find(2).expires_us, index.expiries(0, 9)) == (at_us + 7_000, [(0, 3, at_us + 7_000)])


def test_a_staged_batch_keeps_its_life_in_a_snapshot() -> None:
    machine = PartitionMachine(WindowBounds(100))
    readable(machine, Schedule(5, SHORT))
    stored = encode_snapshot(PLACE, Snapshot(1, 1, 1, machine.state()))
    later = PartitionMachine(WindowBounds(100), decode_snapshot(PLACE, stored).state)
    [published] = readable(later, Publish(SCHEDULED, 5, (UUID,)))
    assert published.expires_us == 7_001


def test_a_life_that_there_is_not_is_refused_with_its_frame() -> None:
    frame = encode(PLACE, Entry(1, 1, 1, Append(attributes=Attributes(ttl_ms=TTL_MS_MAX + 1)), UUID, 1))
    with pytest.raises(CorruptBatch, match=r"ttl_ms \d+ is above"):
        decode(PLACE, b"".join(map(bytes, frame.parts)))


def test_a_priority_that_there_is_not_is_refused_with_its_frame() -> None:
    wrong = Attributes(PRIORITY_MAX + 1)
    for operation in (Append(attributes=wrong), Stage(KEY, 1, "run", wrong), Schedule(5, wrong)):
        frame = encode(PLACE, Entry(1, 1, 1, operation, UUID, 1))
        with pytest.raises(CorruptBatch, match="priority 32 is above 31"):
            decode(PLACE, b"".join(map(bytes, frame.parts)))


def test_a_batch_with_a_priority_has_a_uuid_for_each_record_or_none() -> None:
    frame = encode(PLACE, Entry(1, 1, 1, Append(UUID, HIGH), UUID, 2))
    with pytest.raises(CorruptBatch, match="not a UUID for each record"):
        decode(PLACE, b"".join(map(bytes, frame.parts)))


def test_a_produced_batch_has_the_priority_that_its_header_says() -> None:
    usual = pb.ProduceHeader(uuid=UUID)
    assert _operation(usual, 0) == Append()
    assert _operation(pb.ProduceHeader(attributes=pb.BatchAttributes()), 0) == Append()
    header = pb.ProduceHeader(attributes=pb.BatchAttributes(priority=9))
    assert _operation(header, 0) == Append(attributes=HIGH)
    assert _operation(header, 5) == Schedule(5, HIGH)
    header.stage.CopyFrom(pb.StageOf(key=pb.TransactionKey(query_id="q", sink="t"), batch_id=1, run_id="run"))
    assert _operation(header, 0) == Stage(KEY, 1, "run", HIGH)
    assert _operation(pb.ProduceHeader(attributes=pb.BatchAttributes(priority=99)), 0) == Append(
        attributes=Attributes(31)
    )
    assert _operation(pb.ProduceHeader(attributes=pb.BatchAttributes(ttl_ms=7)), 0) == Append(attributes=SHORT)
    assert _operation(pb.ProduceHeader(attributes=pb.BatchAttributes(ttl_ms=1 << 63)), 5) == Schedule(
        5, Attributes(ttl_ms=TTL_MS_MAX)
    )
