"""What a log says of its entries' sizes and epochs: messages, the bound on the tail and matching are made by it."""

from __future__ import annotations

from array import array

import pytest

from mq_broker.core.entries import (
    Abort,
    Append,
    Decide,
    DeleteGroup,
    Discard,
    Entry,
    EpochStart,
    Fence,
    Finish,
    Forget,
    MoveCursor,
    Operation,
    Publish,
    Stage,
    TransactionKey,
    stored_bytes,
)
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.messages import Checkpoint
from mq_broker.core.replication.log import Log
from mq_broker.storage.codec.frame import Place, encode
from mq_protocol.manifest import StagedPart

KEY = TransactionKey("query" * 20, "sink")
UUIDS = tuple(n.to_bytes(16, "big") for n in range(1000))
OPERATIONS: list[Operation] = [
    Append(),
    Stage(KEY, 7, "run" * 1000),
    Publish(KEY, 7, UUIDS),
    Discard(KEY, UUIDS),
    MoveCursor("group" * 50, 10, "consumer"),
    Decide(KEY, 7, "run", 10, tuple(StagedPart("topic" * 40, n, UUIDS[:3], 3) for n in range(1000))),
    Finish(KEY, 7),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_an_entry_takes_about_what_its_size_says_and_never_much_more(operation: Operation) -> None:
    entry = Entry(1, 1, 0, operation)
    size = encode(Place("t", 0), entry).size
    assert size <= stored_bytes(entry) <= 1.2 * size + 128


def test_a_message_holds_only_as_many_large_decisions_as_fit() -> None:
    log = Log(tuple(Entry(index, 1, 0, Publish(KEY, index, UUIDS)) for index in range(1, 11)))
    size = stored_bytes(log.entry(1))
    assert log.range_end(1, 1000, 3 * size) == 3
    assert log.range_end(1, 1000, 1) == 1
    assert log.tail_bytes == 10 * size
    log.take_applied()
    log.truncate(5)
    assert log.tail_bytes == 4 * size


def test_every_operation_that_names_something_is_counted_with_its_names() -> None:
    """What is not counted is not bounded: an entry of a megabyte of names would pass for a small one."""
    names = TransactionKey("query" * 10_000, "sink" * 10_000)
    for operation in (
        Fence(names, UUIDS),
        Forget((names, names)),
        Abort(names),
        Finish(names, 1),
        DeleteGroup("group" * 10_000),
    ):
        size = encode(Place("t", 0), Entry(1, 1, 0, operation)).size
        assert size <= stored_bytes(Entry(1, 1, 0, operation)) <= 1.05 * size + 128
    kept = [stored_bytes(Entry(1, 1, 0, Fence(KEY, UUIDS[:count]))) for count in (0, 1)]
    assert kept[0] + 16 <= kept[1]


def log_of(*epochs: int) -> Log:
    """An entry of each of these epochs, in order."""
    return Log(tuple(Entry(index, epoch, 100 * index, EpochStart(1)) for index, epoch in enumerate(epochs, start=1)))


def epochs_of(log: Log) -> list[int]:
    return [log.epoch_at(index) for index in range(log.base_index, log.last_index + 1)]


def applied(log: Log, count: int) -> Log:
    for _ in range(count):
        log.take_applied()
    return log


def test_a_log_knows_the_epoch_of_each_entry_and_of_none_beyond_its_ends() -> None:
    log = applied(log_of(1, 1, 3, 3, 4), 4)
    assert epochs_of(log) == [0, 1, 1, 3, 3, 4]
    assert (log.epoch_at(-1), log.epoch_at(6)) == (-1, -1)
    log.begin_after(3)
    assert epochs_of(log) == [3, 3, 4]
    assert (log.epoch_at(2), log.epoch_at(6)) == (-1, -1)


@pytest.mark.parametrize("base", range(6))
def test_a_log_that_is_shortened_anywhere_knows_the_same_of_the_rest(base: int) -> None:
    whole, log = applied(log_of(1, 1, 3, 3, 4), 5), applied(log_of(1, 1, 3, 3, 4), 5)
    log.begin_after(base)
    assert (log.base_index, log.last_index, log.last_epoch, log.base_epoch) == (base, 5, 4, whole.epoch_at(base))
    assert epochs_of(log) == epochs_of(whole)[base:]
    for epoch in range(whole.epoch_at(base), 6):
        for index in range(base, 6):
            assert log.last_index_up_to(epoch, index) == max(base, whole.last_index_up_to(epoch, index))
    log.append(Entry(6, 4, 600, EpochStart(1)))
    log.append(Entry(7, 6, 700, EpochStart(1)))
    assert epochs_of(log)[-2:] == [4, 6]
    log.begin_after(log.applied)
    assert (log.base_index, log.base_epoch, log.tail_count) == (5, 4, 2)


def test_logs_agree_at_most_where_the_lower_of_two_epochs_ends() -> None:
    log = log_of(1, 1, 3, 3, 4)
    assert [log.last_index_up_to(epoch, 9) for epoch in range(6)] == [0, 2, 2, 4, 5, 5]
    assert [log.last_index_up_to(3, index) for index in range(6)] == [0, 1, 2, 3, 4, 4]
    applied(log, 4).begin_after(3)
    assert log.last_index_up_to(2, 5) == 2, "they part before the journal begins, and where is not known any more"
    assert log.last_index_up_to(3, 2) == 2
    assert log.last_index_up_to(3, 1) == 1
    assert log.last_index_up_to(3, 3) == 3
    log.begin_after(4)
    assert log.last_index_up_to(2, 5) == 3, "epoch 4 begins right after the snapshot, and epoch 3 before its end"


def test_what_is_cut_is_as_if_it_had_never_been() -> None:
    log = log_of(1, 1, 3, 4)
    assert log.flushed == 4, "what storage found is on the disk"
    applied(log, 1).truncate(2)
    assert (log.last_index, log.last_epoch, log.flushed, log.tail_count) == (2, 1, 2, 1)
    assert log.tail_bytes == sum(map(stored_bytes, log.tail()))
    log.append(Entry(3, 2, 100, EpochStart(1)))
    assert (epochs_of(log), log.flushed) == ([0, 1, 1, 2], 2)
    assert log.last_timestamp_us == 400, "times never fall, whatever was cut"
    log.truncate(3)
    assert log.last_index == 3
    applied(log, 2).truncate(3)
    assert log.tail() == []


def test_a_message_ends_with_the_log_and_with_the_number_of_entries_and_fills_its_bytes() -> None:
    log = log_of(1, 1, 1, 1, 1)
    size = stored_bytes(log.entry(1))
    assert log.range_end(2, 3, 1 << 20) == 4
    assert log.range_end(2, 100, 1 << 20) == 5
    assert log.range_end(2, 100, 2 * size) == 3
    assert log.range_end(2, 100, 2 * size - 1) == 2
    assert log.range_end(2, 1, 1 << 20) == 2


def test_a_shortened_log_is_cut_where_it_should_be() -> None:
    log = applied(log_of(1, 1, 1, 2, 2), 2)
    log.begin_after(2)
    log.truncate(4)
    assert (log.last_index, log.last_epoch, log.tail_count) == (4, 2, 2)
    log.truncate(3)
    assert (log.last_index, log.last_epoch, log.tail_count) == (3, 1, 1)
    assert log.tail_bytes == stored_bytes(log.entry(3))


def test_a_log_that_goes_on_from_a_checkpoint_is_as_one_that_has_applied_as_much() -> None:
    epochs = (1, 1, 2, 4, 4, 4, 7)
    entries = [Entry(index, epoch, 100 * index, EpochStart(1)) for index, epoch in enumerate(epochs, start=1)]
    sizes = array("I", [stored_bytes(entry) for entry in entries])
    whole = applied(Log(tuple(entries)), 5)
    runs = ((1, 1), (3, 2), (4, 4))
    begun = Log(tuple(entries[5:]), None, Checkpoint(Snapshot(5, 4, 500, MachineState()), runs, sizes[:5]))
    assert [getattr(begun, name) for name in Log.__slots__] == [getattr(whole, name) for name in Log.__slots__]
    assert begun.flushed == 7
    assert [entry.index for entry in begun.tail()] == [6, 7]
    for log in (begun, whole):
        log.begin_after(4)
        assert (epochs_of(log), log.last_index_up_to(4, 7), log.range_end(5, 2, 1 << 20)) == ([4, 4, 4, 7], 6, 6)
    behind = Snapshot(4, 4, 400, MachineState())
    shorter = Log(tuple(entries[5:]), behind, Checkpoint(Snapshot(5, 4, 500, MachineState()), ((5, 4),), sizes[4:5]))
    assert (epochs_of(shorter), shorter.applied, shorter.flushed) == (epochs_of(whole), 5, 7)
