"""The offset index: what it finds is what a plain list would, in memory and in a file."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from mq_broker.core.messages import Published
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.errors import OffsetOutOfRange


@pytest.fixture(params=["memory", "file"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OffsetIndex]:
    index = OffsetIndex(tmp_path / "offsets.index" if request.param == "file" else None)
    yield index
    index.close()


def batches(count: int, seed: int = 5, first_offset: int = 0) -> list[Published]:
    rng = random.Random(seed)
    made: list[Published] = []
    offset, entry, time_us = first_offset, 0, 1_000
    for _ in range(count):
        entry += rng.randrange(1, 4)
        time_us += rng.choice([0, 0, 5, 100])
        made.append(
            Published(offset, rng.randrange(1, 9), entry, time_us, rng.randrange(1, 500), rng.randrange(1, 900))
        )
        offset += made[-1].record_count
    return made


def test_time_is_searched_right_even_where_the_clock_steps_back(index: OffsetIndex) -> None:
    for n, time_us in enumerate([10, 50, 20, 60]):
        index.append(Published(n, 1, n + 1, time_us, 1, 1))
    assert [index.find_time(time_us) for time_us in (0, 10, 11, 50, 51, 60, 61)] == [0, 0, 1, 1, 3, 3, 4]


def test_a_gap_between_batches_is_our_own_mistake(index: OffsetIndex) -> None:
    index.append(Published(0, 3, 1, 5, 30, 60))
    for base_offset in (2, 4):
        with pytest.raises(AssertionError):
            index.append(Published(base_offset, 1, 2, 5, 30, 60))


def test_a_full_disk_leaves_the_index_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = OffsetIndex(tmp_path / "offsets.index")
    model = batches(9000)
    real = os.posix_fallocate

    def fallocate(fd: int, offset: int, size: int) -> None:
        if size > 300_000:
            raise OSError(28, "No space left on device")
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    for published in model:
        index.append(published)
    assert index.range(0, index.log_end_offset, 1 << 40) == model
    index.close()


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_very_many_batches_cost_their_bytes_and_no_objects(count: int) -> None:
    index = OffsetIndex()
    published = [Published(n, 1, n + 1, n, 100, 200) for n in range(count)]
    tracemalloc.start()
    for one in published:
        index.append(one)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 2 * 56 * count + 10_000
    assert index.find(count - 1).index == count


# ------------------------------------------------------------------ retention, snapshots, losses


class Model:
    """The same as plain lists."""

    def __init__(self, start: int = 0) -> None:
        self.start = self.end = start
        self.batches: list[Published] = []
        self.lost: list[tuple[int, int]] = []

    def live(self) -> list[Published]:
        return [b for b in self.batches if b.base_offset + b.record_count > self.start]

    def next_kept(self, offset: int) -> int:
        """-1: it is kept, or beyond the end."""
        if offset < self.start:
            return self.start
        return next((end for first, end in self.lost if first <= offset < end), -1)


@pytest.mark.parametrize("seed", range(2))
def test_a_random_life_equals_a_list(index: OffsetIndex, seed: int) -> None:
    rng = random.Random(seed)
    model = Model()
    time_us, entry = 1000, 0
    for _ in range(300):
        action = rng.random()
        if action < 0.9:
            for _ in range(rng.randrange(1, 12)):
                time_us += rng.choice([0, 3])
                entry += 1
                staged = entry - rng.randrange(0, 40) if rng.random() < 0.2 else entry
                published = Published(model.end, rng.randrange(1, 9), max(1, staged), time_us, rng.randrange(1, 500), 9)
                index.append(published)
                model.batches.append(published)
                model.end += published.record_count
        elif action < 0.93:
            lost = rng.randrange(1, 50)
            index.skip(model.end, model.end + lost)
            model.lost.append((model.end, model.end + lost))
            model.end += lost
        else:
            start = rng.choice([rng.randrange(model.start, model.end + 1), (model.start + model.end) // 2])
            index.trim(start)
            index.trim(start - 3)
            model.start = max(model.start, start)
        if rng.random() < 0.1:
            compare(index, model, rng)
    compare(index, model, rng)
    index.trim(model.end)
    model.start = model.end
    compare(index, model, rng)


def compare(index: OffsetIndex, model: Model, rng: random.Random) -> None:
    live = model.live()
    assert (index.log_start_offset, index.log_end_offset, len(index)) == (model.start, model.end, len(live))
    whole = [b for b in live if b.base_offset >= model.start]
    assert 0 <= index.bytes_total - sum(b.payload_bytes for b in whole) <= 500
    assert index.bytes_between(-5, model.end + 5) == index.bytes_total
    if len(whole) == len(live):
        assert index.bytes_total == sum(b.payload_bytes for b in live)
    offsets = [rng.randrange(max(0, model.start - 5), model.end + 2) for _ in range(20)]
    for offset in offsets:
        holder = next((b for b in live if b.base_offset <= offset < b.base_offset + b.record_count), None)
        if model.start <= offset < model.end and holder is not None:
            assert index.find(offset) == holder
            assert index.next_bytes(offset) == holder.payload_bytes
            got = index.range(offset, offset + rng.randrange(1, 200), 1 << 40)
            at = live.index(holder)
            assert got == live[at : at + len(got)]
            assert all(a.base_offset + a.record_count == b.base_offset for a, b in pairwise(got))
        else:
            for ask in (index.find, lambda offset: index.range(offset, offset + 1, 9)):
                with pytest.raises(OffsetOutOfRange) as refused:
                    ask(offset)
                assert refused.value.next_offset == model.next_kept(offset)
        above = [b.index for b in live if b.base_offset + b.record_count > offset]
        assert index.oldest_index(offset) == min(above, default=None)
    from_there = list(accumulate(b.payload_bytes for b in reversed(live)))[::-1]
    for time_us in {0, 1 << 50, *(b.timestamp_us + 1 for b in rng.sample(live, min(3, len(live))))}:
        by_time = next((max(b.base_offset, model.start) for b in live if b.timestamp_us >= time_us), model.end)
        assert index.find_time(time_us) == by_time
        assert index.retention_offset(time_us, -1) == by_time
        for room in (0, 1, 700, index.bytes_total, 1 << 40):
            fitting = [
                max(b.base_offset, model.start) for b, after in zip(live, from_there, strict=True) if after >= room
            ]
            by_size = max(fitting, default=model.start)
            assert index.retention_offset(0, room) == max(by_size, index.retention_offset(0, -1))
            assert index.retention_offset(time_us, room) == max(by_size, by_time)


def test_retention_by_size_keeps_what_was_asked_for_and_the_last_batch(index: OffsetIndex) -> None:
    for n in range(5):
        index.append(Published(n * 10, 10, n + 1, 100 + n, 1000, 1))
    assert [index.retention_offset(0, size) for size in (-1, 5001, 5000, 4999, 4000, 3999, 1, 0)] == [
        0,
        0,
        0,
        0,
        10,
        10,
        40,
        40,
    ]
    assert [index.retention_offset(time_us, -1) for time_us in (100, 101, 104, 105)] == [0, 10, 40, 50]
    index.trim(50)
    assert (len(index), index.bytes_total, index.retention_offset(1 << 60, 0)) == (0, 0, 50)


def test_a_batch_begins_where_its_first_record_is(index: OffsetIndex) -> None:
    index.append(Published(0, 10, 1, 0, 100, 100))
    index.append(Published(10, 5, 2, 0, 100, 100))
    index.skip(15, 30)
    index.append(Published(30, 5, 3, 0, 100, 100))
    assert [index.batch_start(offset) for offset in (0, 9, 10, 14, 15, 22, 30, 34, 35, 99)] == [
        *(0, 0, 10, 10, 15, 22, 30, 30, 35, 35)
    ]
    index.trim(12)
    assert [index.batch_start(offset) for offset in (3, 12, 14, 33)] == [3, 12, 12, 30]


def test_lost_offsets_are_told_where_the_log_begins_with_them_too() -> None:
    index = OffsetIndex()
    index.append(Published(0, 5, 1, 10, 50, 1))
    assert index.lost_from(0) == ()
    index.skip(5, 100)
    assert index.lost_from(0) == ((5, 100),)
    index.append(Published(100, 2, 2, 20, 20, 1))
    index.skip(102, 200)
    assert index.lost_from(0) == ((5, 100), (102, 200))
    assert index.lost_from(50) == ((50, 100), (102, 200))
    index.trim(5)
    assert index.lost_from(5) == ((5, 100), (102, 200))
    index.trim(101)
    assert index.lost_from(101) == ((102, 200),)


def test_lost_offsets_at_the_beginning_are_known_by_the_first_record() -> None:
    index = OffsetIndex(None, 5)  # the entry that says what was lost is not in the journal any more
    index.append(Published(100, 2, 2, 20, 20, 1))
    assert index.lost_from(5) == ((5, 100),)


def test_what_a_replay_after_a_snapshot_publishes_below_the_start_is_passed_over() -> None:
    index = OffsetIndex(None, log_start_offset=40, next_offset=100)
    assert (index.log_start_offset, index.log_end_offset) == (100, 100)
    with pytest.raises(OffsetOutOfRange, match="it starts at 100") as below:
        index.find(50)
    assert below.value.next_offset == 100
    # staged before the journal's beginning, published after it, trimmed after that
    index.append(Published(100, 10, 3, 1, 70, 7))
    index.append(Published(110, 10, 900, 2, 30, 3))
    index.trim(110)
    assert (len(index), index.bytes_total, index.oldest_index(0)) == (1, 30, 900)
    later = OffsetIndex(None, log_start_offset=110)
    later.append(Published(100, 10, 3, 1, 70, 7))
    later.append(Published(110, 10, 900, 2, 30, 3))
    assert (later.log_start_offset, later.log_end_offset, len(later), later.bytes_total) == (110, 120, 1, 30)


def test_months_of_retention_take_no_more_room_than_what_is_kept(tmp_path: Path) -> None:
    index, file = OffsetIndex(tmp_path / "offsets.index"), tmp_path / "offsets.index"
    for n in range(12_000):
        index.append(Published(n, 1, n + 1, n, 10, 10))
        if n % 50 == 49:
            index.trim(max(0, n - 3_000))
    assert file.stat().st_size <= 56 * 2 * 2 * 3_100
    assert [b.base_offset for b in index.range(index.log_start_offset, 1 << 40, 1 << 40)] == list(range(8_999, 12_000))
    index.close()


def test_an_index_goes_on_from_what_it_was_frozen_as(index: OffsetIndex, tmp_path: Path) -> None:
    made = batches(5_000)
    for number, published in enumerate(made[:4_000]):
        index.append(published)
        if number == 1_500:
            index.trim(published.base_offset)
    [frozen] = index.freezing()
    assert frozen is not None
    again = OffsetIndex.thawed(frozen, tmp_path / "again.index")
    for each in (index, again):
        for published in made[4_000:]:
            each.append(published)
        each.trim(made[2_000].base_offset + 1)
    for offset in (again.log_start_offset, made[2_500].base_offset, made[4_500].base_offset):
        assert again.range(offset, again.log_end_offset, 10_000) == index.range(offset, index.log_end_offset, 10_000)
        assert again.newest_us(offset) == index.newest_us(offset)
        assert again.bytes_between(0, offset) == index.bytes_between(0, offset)
    assert (len(again), again.bytes_total, again.log_start_offset, again.log_end_offset) == (
        len(index),
        index.bytes_total,
        index.log_start_offset,
        index.log_end_offset,
    )
    again.close()


def test_an_index_is_frozen_as_of_the_first_piece_however_long_that_takes(index: OffsetIndex) -> None:
    made = batches(3_000)
    for published in made[:2_000]:
        index.append(published)
    [at_once] = index.freezing()
    pieces, left = index.freezing(1_000), made[2_000:]
    for piece in pieces:
        if piece is not None:
            assert piece == at_once
            break
        index.append(left.pop(0))
    assert len(left) == 1_000 - 127


def test_what_is_moved_while_it_is_frozen_is_given_up(index: OffsetIndex) -> None:
    made = batches(2_000)
    for published in made:
        index.append(published)
    pieces = index.freezing(1_000)
    assert next(pieces) is None
    index.trim(made[1_900].base_offset)
    assert list(pieces) == []
