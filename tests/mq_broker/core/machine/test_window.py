"""The window of UUIDs: what it remembers, for how long, at what cost, and that a frozen one stays as it was."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict

import pytest

from mq_broker.core.entries import Append, Entry, EpochStart, Publish, Stage, TransactionKey
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import MachineState
from mq_broker.core.machine.window import (
    FORGOTTEN_AT_ONCE_MAX,
    TURNOVER_US,
    Placed,
    SeenUuids,
    UuidWindow,
    WindowBounds,
)

KEY = TransactionKey("query", "sink")


def uuid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def append(index: int, timestamp_us: int = 0) -> Entry:
    return Entry(index, 1, timestamp_us, Append(), uuid_of(index), 1)


def remembered(window: UuidWindow) -> list[tuple[bytes, Placed]]:
    return list(window.frozen())


@pytest.mark.parametrize("uuids_max", [1, 7, 1023, 1024, 1025, 3000])
def test_it_remembers_exactly_the_last_so_many(uuids_max: int) -> None:
    window = UuidWindow(WindowBounds(uuids_max))
    for number in range(1, 5001):
        window.remember(uuid_of(number), Placed(number, number * 10, number * 100))
    assert len(window) == uuids_max
    assert uuid_of(5000 - uuids_max) not in window
    for number in range(5001 - uuids_max, 5001):
        assert window.get(uuid_of(number)) == Placed(number, number * 10, number * 100)


def test_it_does_what_an_ordered_dictionary_does_whatever_is_asked_of_it() -> None:
    chance = random.Random(3)
    for bound in (1, 5, 700, 2500):
        model: OrderedDict[bytes, Placed] = OrderedDict()
        window = UuidWindow(WindowBounds(bound))
        frozen: list[tuple[SeenUuids, list[tuple[bytes, Placed]]]] = []
        for index in range(6000):
            uuid = uuid_of(chance.randrange(4 * bound + 10))
            placed = Placed(index, chance.randrange(-1, 1 << 50), chance.randrange(1 << 60))
            if chance.random() < 0.3:
                assert window.place(uuid, placed) == (uuid in model)
                if uuid in model:
                    model[uuid] = placed
            else:
                window.remember(uuid, placed)
                model[uuid] = placed
                if len(model) > bound:
                    model.popitem(last=False)
            asked = uuid_of(chance.randrange(4 * bound + 10))
            assert window.get(asked) == model.get(asked)
            assert (asked in window, len(window)) == (asked in model, len(model))
            if chance.random() < 0.002:
                frozen.append((window.frozen(), list(model.items())))
            if chance.random() < 0.001:
                window = UuidWindow(WindowBounds(bound), window.frozen())
        assert frozen
        for seen, pairs in frozen:
            assert list(seen) == pairs
            assert seen == SeenUuids.of(pairs)
            assert [uuid in UuidWindow(WindowBounds(bound), seen) for uuid, _ in pairs] == [True] * len(pairs)


def test_two_windows_from_one_frozen_state_go_their_own_ways() -> None:
    first = UuidWindow(WindowBounds(100))
    first.remember(uuid_of(1), Placed(1, -1, 1))
    frozen = first.frozen()
    second = UuidWindow(WindowBounds(100), frozen)
    first.place(uuid_of(1), Placed(1, 77, 2))
    second.remember(uuid_of(2), Placed(2, 5, 2))
    assert remembered(first) == [(uuid_of(1), Placed(1, 77, 2))]
    assert remembered(second) == [(uuid_of(1), Placed(1, -1, 1)), (uuid_of(2), Placed(2, 5, 2))]
    assert list(frozen) == [(uuid_of(1), Placed(1, -1, 1))]


def _bytes_of(window: UuidWindow) -> int:
    chunks = window._chunks
    columns = sum(
        sys.getsizeof(column)
        for chunk in chunks
        for column in (chunk, chunk.uuids, chunk.indexes, chunk.base_offsets, chunk.timestamps_us, chunk.steps)
    )
    return columns + sys.getsizeof(chunks) + sys.getsizeof(window._heads)


def test_a_full_window_takes_at_most_48_bytes_a_uuid_and_says_how_much_it_takes() -> None:
    chance = random.Random(1)
    window = UuidWindow(WindowBounds(100_000))
    for index in range(130_000):
        window.remember(chance.randbytes(16), Placed(index, index, index))
    assert _bytes_of(window) <= 48 * len(window)
    assert window.memory_bytes == pytest.approx(_bytes_of(window), rel=0.03)


def test_uuids_of_any_pattern_are_found_after_a_few_looks() -> None:
    """Strangers choose UUIDs: those that count up, in high bytes or in low ones, must not share a bucket."""
    for shift in (0, 64, 104):
        window = UuidWindow(WindowBounds(20_000))
        for number in range(20_000):
            window.remember(uuid_of(number << shift), Placed(number, number, number))
        longest = 0
        for bucket in range(len(window._heads)):
            number, looks = window._newest(bucket), 0
            while number >= window._first:
                looks += 1
                step = window._chunk(number).steps[number & 1023]
                number -= step or number
            longest = max(longest, looks)
        assert longest <= 20


def test_a_uuid_is_remembered_until_it_is_older_than_the_bound_and_no_longer() -> None:
    window = UuidWindow(WindowBounds(100, age_ms_max=60))
    window.remember(uuid_of(1), Placed(1, 0, 1_000_000))
    window.remember(uuid_of(2), Placed(2, 1, 1_000_001))
    window.forget_aged(1_060_000)
    assert uuid_of(1) in window
    window.forget_aged(1_060_001)
    assert (uuid_of(1) in window, uuid_of(2) in window) == (False, True)


def test_one_entry_drops_a_bounded_number_of_aged_uuids_and_the_next_go_on() -> None:
    machine = PartitionMachine(WindowBounds(10_000, age_ms_max=1_000))
    for index in range(1, 1001):
        machine.apply(append(index, index))
    held = len(machine.uuids)
    machine.apply(Entry(1001, 2, 10_000_000, EpochStart(1)))
    assert len(machine.uuids) == held - FORGOTTEN_AT_ONCE_MAX
    for index in range(1002, 1020):
        machine.apply(append(index, 10_000_000))
    assert len(machine.uuids) == 18


def test_an_entry_with_many_uuids_drops_more_aged_ones_than_it_brings() -> None:
    machine = PartitionMachine(WindowBounds(10_000, age_ms_max=1_000))
    for index in range(1, 10):
        records = b"".join(uuid_of(index * 1_000 + record) for record in range(500))
        machine.apply(Entry(index, 1, index * 10_000_000, Append(records), uuid_of(index), 500))
        assert len(machine.uuids) <= 501 + 501 // 2


def test_an_entry_drops_few_more_aged_uuids_than_its_records_brought() -> None:
    machine = PartitionMachine(WindowBounds(10_000, age_ms_max=1_000))
    for index in range(1, 2001):
        machine.apply(append(index, index))
    held = len(machine.uuids)
    records = b"".join(uuid_of(9_000 + record) for record in range(10))
    machine.apply(Entry(2001, 1, 10_000_000, Append(records), uuid_of(2001), 10))
    assert len(machine.uuids) == held + 11 - (FORGOTTEN_AT_ONCE_MAX + 10)


def test_age_is_counted_by_the_journal_from_when_a_staged_batch_was_published() -> None:
    machine = PartitionMachine(WindowBounds(100, age_ms_max=1))
    machine.apply(Entry(1, 1, 0, Stage(KEY, 1, "run"), uuid_of(1), 3))
    machine.apply(Entry(2, 1, 5_000, Publish(KEY, 1, (uuid_of(1),))))
    assert machine.uuids.get(uuid_of(1)) == Placed(1, 0, 5_000)
    machine.apply(Entry(3, 1, 5_000, Stage(KEY, 2, "run"), uuid_of(2), 3))
    machine.apply(Entry(4, 1, 5_900, Publish(KEY, 2, (uuid_of(2),))))
    machine.apply(Entry(5, 1, 6_900, EpochStart(1)))
    assert machine.uuids.get(uuid_of(2)) == Placed(3, 3, 5_900)
    machine.apply(Entry(6, 1, 6_901, EpochStart(1)))
    assert machine.uuids.get(uuid_of(2)) is None


def test_replicas_that_began_with_a_snapshot_have_the_window_of_those_that_did_not() -> None:
    chance = random.Random(5)
    entries = [append(index, index * 50 + chance.randrange(40)) for index in range(1, 2001)]
    for bounds in (WindowBounds(300), WindowBounds(5_000, age_ms_max=10), WindowBounds(100, age_ms_max=20)):
        whole = PartitionMachine(bounds)
        other = PartitionMachine(bounds, MachineState())
        for entry in entries:
            whole.apply(entry)
            other.apply(entry)
            if chance.random() < 0.05:
                state = other.state()
                other = PartitionMachine(bounds, MachineState(state.next_offset, uuids=SeenUuids.of(state.uuids)))
        assert whole.state() == other.state()


def test_a_uuid_that_is_not_16_bytes_long_is_not_made_part_of_a_window() -> None:
    with pytest.raises(ValueError, match="16 bytes, not 3"):
        SeenUuids.of([(b"abc", Placed(1, 1, 1))])


def test_two_windows_are_the_same_if_they_remember_the_same_in_the_same_order() -> None:
    pairs = [(uuid_of(number), Placed(number, number, number)) for number in range(3)]
    seen = SeenUuids.of(pairs)
    assert seen == SeenUuids.of(pairs)
    assert hash(seen) == hash(SeenUuids.of(pairs))
    for other in (pairs[::-1], pairs[:2], [*pairs[:2], (pairs[2][0], Placed(2, 2, 3))], []):
        assert seen != SeenUuids.of(other)
    assert SeenUuids.of([]) == SeenUuids.of([])
    assert seen != pairs


def test_it_notes_when_a_uuid_was_pushed_out_younger_than_a_minute() -> None:
    machine = PartitionMachine(WindowBounds(3))
    times_us = [10, 20, 30, 10 + TURNOVER_US, 19 + TURNOVER_US]
    for index, timestamp_us in enumerate(times_us, 1):
        assert machine.uuids.pushed_out_young_us == 0
        machine.apply(append(index, timestamp_us))
    assert machine.uuids.pushed_out_young_us == 19 + TURNOVER_US, "the second UUID was there for less than a minute"


def test_a_uuid_that_is_dropped_for_its_age_was_not_pushed_out() -> None:
    machine = PartitionMachine(WindowBounds(100, age_ms_max=1))
    for index in range(1, 200):
        machine.apply(append(index, index * 10_000))
    assert machine.uuids.pushed_out_young_us == 0
