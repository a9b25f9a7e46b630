"""The offset index: what it finds is what a plain list would, in memory and in a file."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Iterator
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
        made.append(Published(offset, rng.randrange(1, 9), entry, time_us, rng.randrange(1, 500), rng.randrange(1, 900)))
        offset += made[-1].record_count
    return made


def test_an_empty_log_holds_no_offset(index: OffsetIndex) -> None:
    assert (index.log_start_offset, index.log_end_offset, len(index)) == (0, 0, 0)
    assert index.range(0, 0, 100) == []
    assert index.find_time(0) == 0
    assert index.bytes_between(0, 100) == 0
    with pytest.raises(OffsetOutOfRange):
        index.find(0)


@pytest.mark.parametrize("count", [1, 2, 73, 74, 3000])
def test_it_answers_as_a_list_would(index: OffsetIndex, count: int) -> None:
    model = batches(count)
    for published in model:
        index.append(published)
    end = model[-1].base_offset + model[-1].record_count
    assert (len(index), index.log_end_offset, index.bytes_total) == (count, end, sum(b.payload_bytes for b in model))
    holder = [b for b in model for _ in range(b.record_count)]
    rng = random.Random(count)
    for offset in {0, end - 1, *rng.sample(range(end), min(end, 200))}:
        assert index.find(offset) == holder[offset]
    for _ in range(200):
        start, stop = sorted((rng.randrange(end), rng.randrange(end + 3)))
        room = rng.choice([0, 400, 3000, 1 << 30])
        wanted = [b for b in model if b.base_offset < stop and b.base_offset + b.record_count > start]
        got = index.range(start, stop, room)
        assert got == wanted[: len(got)]
        assert bool(got) is (start < stop)
        assert len(got) <= 1 or sum(b.payload_bytes for b in got) <= room
        if len(got) < len(wanted) and start < stop:
            assert sum(b.payload_bytes for b in wanted[: len(got) + 1]) > room
    for time_us in {
        0,
        model[0].timestamp_us,
        *(b.timestamp_us + rng.choice([-1, 0, 1]) for b in rng.sample(model, min(count, 50))),
    }:
        assert index.find_time(time_us) == next((b.base_offset for b in model if b.timestamp_us >= time_us), end)
    assert index.find_time(1 << 60) == end


def test_bytes_of_neighbouring_ranges_add_up(index: OffsetIndex) -> None:
    model = batches(50)
    for published in model:
        index.append(published)
    end = index.log_end_offset
    assert index.bytes_between(0, end) == index.bytes_between(-5, end + 5) == index.bytes_total
    assert index.bytes_between(model[7].base_offset, model[8].base_offset) == model[7].payload_bytes
    assert sum(index.bytes_between(offset, offset + 1) for offset in range(end)) == index.bytes_total
    assert index.bytes_between(end, 0) == 0


def test_time_is_searched_right_even_where_the_clock_steps_back(index: OffsetIndex) -> None:
    for n, time_us in enumerate([10, 50, 20, 60]):
        index.append(Published(n, 1, n + 1, time_us, 1, 1))
    assert [index.find_time(time_us) for time_us in (0, 10, 11, 50, 51, 60, 61)] == [0, 0, 1, 1, 3, 3, 4]


def test_offsets_go_on_where_a_log_that_was_emptied_ended() -> None:
    index = OffsetIndex(None, log_start_offset=700)
    assert (index.log_start_offset, index.log_end_offset) == (700, 700)
    index.append(Published(700, 3, 1, 5, 30, 60))
    assert index.find(702).base_offset == 700
    assert index.bytes_between(0, 701) == 10
    with pytest.raises(OffsetOutOfRange, match="700 to 702"):
        index.find(699)


def test_a_gap_between_batches_is_our_own_mistake(index: OffsetIndex) -> None:
    index.append(Published(0, 3, 1, 5, 30, 60))
    for base_offset in (2, 4):
        with pytest.raises(AssertionError):
            index.append(Published(base_offset, 1, 2, 5, 30, 60))


def test_what_an_earlier_life_left_in_the_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "offsets.index"
    for seed in (1, 2):
        index = OffsetIndex(path)
        model = batches(2000, seed)
        for published in model:
            index.append(published)
        assert path.stat().st_size >= 56 * 2000
        assert index.range(0, index.log_end_offset, 1 << 40) == model
        index.close()


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


def test_a_hundred_thousand_batches_cost_their_bytes_and_no_objects() -> None:
    index = OffsetIndex()
    published = [Published(n, 1, n + 1, n, 100, 200) for n in range(100_000)]
    tracemalloc.start()
    for one in published:
        index.append(one)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 2 * 56 * 100_000 + 100_000
    assert index.find(99_999).index == 100_000
