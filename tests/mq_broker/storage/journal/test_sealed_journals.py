"""Journals that are sealed: nothing of a payload on the disk, nothing altered served, and three answers where a plain
journal has one: wrong key, altered, damaged."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import pytest

from mq_broker.core.machine.window import WindowBounds
from mq_broker.measured import ALARMS
from mq_broker.storage.interface import Frame
from mq_broker.storage.journal.segments import pack_mark
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.sealed import BLOCK_BYTES, OVERHEAD_BYTES, Altered, KeyAbsent, WrongKey
from mq_protocol.errors import StorageFailed
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import (
    PLACE,
    Bed,
    eventually,
    frame_of,
    frames_of,
    joined,
)

ALL = 1 << 40
MARKER = b"THIS-IS-A-PAYLOAD"
UNIT = 100 + OVERHEAD_BYTES  # of `frames_of` with 40 bytes of payload


def sealed(bed: Bed) -> Bed:
    bed.keys = Keyring("test:", bed.provider)
    return bed


async def written(bed: Bed, frames: list[Frame], mark: int | None = None) -> None:
    journal, heard, _ = bed.open()
    journal.append(frames)
    await heard.until_flushed(frames[-1].entry.index)
    await bed.crash(journal)
    if mark is not None:
        (bed.path / "flushed").write_bytes(pack_mark(PLACE, mark))


def forged(data: bytes, at: int, position: int) -> bytes:
    """The unit that begins at `at` with the byte at `position` flipped, and its checksum put right."""
    changed = bytearray(data)
    changed[position] ^= 1
    size = 60 + int.from_bytes(data[at + 52 : at + 56], "little")
    crc = google_crc32c.extend(PLACE.seed, bytes(changed[at + 4 : at + size]))
    changed[at : at + 4] = int(crc).to_bytes(4, "little")
    return bytes(changed)


@real_time
async def test_nothing_of_a_payload_is_in_any_file_whatever_happens_to_the_journal(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=600) as bed:
        sealed(bed)
        journal, heard, _ = bed.open()
        journal.append([frame_of(index, payload=MARKER * 5) for index in range(1, 13)])
        await heard.until_flushed(12)
        assert await journal.shorten_to(7, WindowBounds(100)) > 1
        await bed.crash(journal)
        data = bytearray(bed.segments[-1].read_bytes())
        data[-1] ^= 1  # damage: it goes aside
        bed.segments[-1].write_bytes(data)
        journal, _, opened = bed.open()
        assert opened.damaged
        assert list(bed.path.glob("aside-*/*.log"))
        await journal.close()
        for path in bed.path.rglob("*"):
            assert path.is_dir() or MARKER not in path.read_bytes(), path


@real_time
async def test_a_journal_that_was_plain_goes_on_sealed_in_a_new_segment_and_reads_as_before(tmp_path: Path) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 3))
        await journal.close()
        plain = bed.segments[0].read_bytes()
        journal, heard, _ = sealed(bed).open()
        journal.append(frames_of(4, 6))
        await heard.until_flushed(6)
        await bed.crash(journal)
        assert bed.segments[0].read_bytes() == plain == joined(frames_of(1, 3))
        assert [path.stat().st_size for path in bed.segments] == [300, BLOCK_BYTES + 3 * UNIT]
        journal, _, opened = bed.open()
        assert joined(journal.read(1, 9, ALL)) == joined(frames_of(1, 6))
        assert len(opened.recovered.entries) == 6
        await journal.close()


@real_time
async def test_a_tail_torn_at_any_byte_is_cut_the_block_included(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        await written(sealed(bed), frames_of(1, 3), mark=0)
        segment = bed.segments[0]
        whole = segment.read_bytes()
        assert len(whole) == BLOCK_BYTES + 3 * UNIT
        ends = [BLOCK_BYTES + n * UNIT for n in range(4)]
        for length in [*range(0, len(whole), 97), *ends[:3], *(end - 1 for end in ends)]:
            segment.write_bytes(whole[:length])
            (bed.path / "flushed").write_bytes(pack_mark(PLACE, 0))
            journal, heard, opened = bed.open()
            kept = sum(end <= length for end in ends[1:])
            assert (len(opened.recovered.entries), opened.damaged) == (kept, "")
            assert segment.stat().st_size == (ends[kept] if kept else 0)
            if length % 3 == 0:  # it goes on from there
                journal.append(frames_of(kept + 1, 3, epoch=2))
                await heard.until_flushed(3)
                assert joined(journal.read(1, 9, ALL)) == joined(
                    [*frames_of(1, kept), *frames_of(kept + 1, 3, epoch=2)]
                )
            await bed.crash(journal)


@real_time
async def test_what_was_altered_with_a_right_checksum_keeps_the_journal_closed_and_as_it_is(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        await written(sealed(bed), frames_of(1, 3))
        segment = bed.segments[0]
        whole, name = segment.read_bytes(), (bed.path / "log.json").read_bytes()
        second = BLOCK_BYTES + UNIT
        cases = [
            forged(whole, second, position)
            for position in range(second + 8, second + UNIT, 3)
            if position - second not in range(48, 56)
        ]
        cases.append(whole[:second] + joined(frames_of(2, 2, epoch=1)) + whole[second + UNIT :])
        outcomes = set()
        for data in cases:
            segment.write_bytes(data)
            with pytest.raises(StorageFailed) as raised:
                bed.open()
            outcomes.add(type(raised.value))
            assert segment.read_bytes() == data
        assert (bed.path / "log.json").read_bytes() == name
        assert list(bed.path.glob("aside-*")) == []
        assert outcomes == {Altered}
        assert "default-1" in str(raised.value)


@real_time
async def test_a_key_that_is_missing_or_wrong_keeps_the_journal_closed_until_it_is_right(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        await written(sealed(bed), frames_of(1, 3))
        before = {path: path.read_bytes() for path in bed.path.iterdir()}
        bed.keys = None
        with pytest.raises(KeyAbsent, match="give --encrypt KEYREF"):
            bed.open()
        sealed(bed).provider.gone = {"default-1"}
        bed.provider.newest["default"] = 2
        with pytest.raises(KeyAbsent, match="no key default-1"):
            sealed(bed).open()
        bed.provider.gone = set()
        bed.provider.away = True
        with pytest.raises(KeyAbsent, match="does not answer"):
            sealed(bed).open()
        bed.provider.away = False
        bed.provider.salt = "another"
        with pytest.raises(WrongKey, match=r"'default-1'.*wrong key"):
            sealed(bed).open()
        assert {path: path.read_bytes() for path in bed.path.iterdir()} == before
        bed.provider.salt = ""
        journal, heard, opened = sealed(bed).open()
        assert (len(opened.recovered.entries), opened.damaged) == (3, "")
        journal.append(frames_of(4, 4))  # with the newer key, in a segment of its own
        await heard.until_flushed(4)
        await journal.close()
        assert [b'"default-1"' in path.read_bytes() for path in bed.segments] == [True, False]
        assert b'"default-2"' in bed.segments[1].read_bytes()


@real_time
async def test_keys_that_are_away_stop_nobody_and_the_segment_grows(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        bed.provider.at_hand = False
        journal, heard, _ = sealed(bed).open()
        bed.provider.away = True
        told = ALARMS.rows()["keys_away",]
        for index in range(1, 21):
            journal.append(frames_of(index, index))
            await heard.until_flushed(index)
        assert len(bed.segments) == 1  # there was one key, and no other
        assert ALARMS.rows()["keys_away",] == told + 1
        bed.provider.away = False
        ahead = journal._ahead  # type: ignore[attr-defined]
        await eventually(lambda: bool(ahead.ready))
        journal.append(frames_of(21, 21))
        await heard.until_flushed(21)
        assert len(bed.segments) == 2
        assert joined(journal.read(1, 99, ALL)) == joined(frames_of(1, 21))
        await journal.close()


@pytest.mark.parametrize("room", [0, 2048, BLOCK_BYTES, BLOCK_BYTES + UNIT - 1, BLOCK_BYTES + 2 * UNIT + 5])
@real_time
async def test_a_full_disk_keeps_what_fits_whole_and_goes_on_when_there_is_room(tmp_path: Path, room: int) -> None:
    async with Bed(tmp_path) as bed:
        journal, heard, _ = sealed(bed).open()
        bed.files.room = room
        journal.append(frames_of(1, 5))
        await heard.until_heard("refused")
        fitting = max(0, (room - BLOCK_BYTES) // UNIT)
        assert heard.of("refused") == [fitting + 1]
        bed.files.room = None
        journal.append(frames_of(fitting + 1, 6, epoch=2))
        await heard.until_flushed(6)
        await bed.crash(journal)
        assert bed.segments[0].stat().st_size == BLOCK_BYTES + 6 * UNIT
        journal, _, opened = bed.open()
        assert [entry.leader_epoch for entry in opened.recovered.entries] == [1] * fitting + [2] * (6 - fitting)
        await journal.close()


@real_time
async def test_damage_that_is_read_gives_a_new_log_id_and_what_was_altered_does_not(tmp_path: Path) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed:
        journal, heard, _ = sealed(bed).open()
        journal.append(frames_of(1, 3))
        await heard.until_flushed(3)
        segment = bed.segments[0]
        whole, second = segment.read_bytes(), BLOCK_BYTES + UNIT
        segment.write_bytes(forged(whole, second, second + 80))
        told = ALARMS.rows()["altered",]
        for _ in range(2):
            with pytest.raises(Altered, match=r"entry 2 .* was altered"):
                journal.read(1, 3, ALL)
        assert joined(journal.read(1, 1, ALL)) == joined(frames_of(1, 1))
        assert ALARMS.rows()["altered",] == told + 1
        await heard.until_heard("altered")
        assert len(heard.of("altered")) == 1
        assert heard.of("replaced") == []
        segment.write_bytes(whole[: second + 80] + bytes([whole[second + 80] ^ 1]) + whole[second + 81 :])
        with pytest.raises(StorageFailed, match=f"damaged at byte {second}"):
            journal.payload(2)
        await heard.until_heard("replaced")
        await journal.close()


@real_time
async def test_a_cold_read_of_much_is_opened_in_a_thread_and_only_once(tmp_path: Path) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed:
        frames = [frame_of(index, payload=bytes([index]) * 50_000) for index in range(1, 5)]
        journal, heard, _ = sealed(bed).open()
        journal.append(frames)
        await heard.until_flushed(4)
        assert journal.bytes_apart(1, 1) == 0  # little: it is left to who reads
        assert (await journal.open_apart(1, 1)).frames == {}
        assert 200_000 < journal.bytes_apart(1, 4) < 201_000
        opened = await journal.open_apart(1, 4)
        assert (await journal.open_apart(2, 4)).frames.keys() == {2, 3, 4}
        whole = bed.segments[0].read_bytes()
        bed.segments[0].write_bytes(b"")  # whoever reads now is given what was opened
        assert [bytes(journal.payload(index, opened)) for index in (3, 1)] == [bytes([3]) * 50_000, bytes([1]) * 50_000]
        bed.segments[0].write_bytes(whole)
        journal.truncate(2)
        journal.append([frame_of(3, payload=b"another")])
        assert bytes(journal.payload(3, opened)) == b"another"
        await journal.close()


@real_time
async def test_what_a_snapshot_stands_for_is_not_served_though_it_was_opened(tmp_path: Path) -> None:
    async with Bed(tmp_path, cache_bytes_max=0, segment_bytes_max=110000) as bed:
        journal, heard, _ = sealed(bed).open()
        journal.append([frame_of(index, payload=bytes([index]) * 50_000) for index in range(1, 9)])
        await heard.until_flushed(8)
        opened = await journal.open_apart(1, 2)
        assert opened.frames.keys() == {1, 2}
        assert await journal.shorten_to(8, WindowBounds(100)) > 2
        with pytest.raises(StorageFailed, match="is not kept"):
            journal.payload(1, opened)
        await journal.close()


@real_time
async def test_other_entries_that_lie_where_some_belong_are_not_served(tmp_path: Path) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed:
        journal, heard, _ = sealed(bed).open()
        journal.append([frame_of(index, payload=bytes([index]) * 50_000) for index in range(1, 5)])
        await heard.until_flushed(4)
        data = bed.segments[0].read_bytes()
        unit = (len(data) - BLOCK_BYTES) // 4
        cut = BLOCK_BYTES + unit
        bed.segments[0].write_bytes(data[:cut] + data[cut + unit :] + data[cut : cut + unit])
        assert (await journal.open_apart(1, 4)).frames == {}
        with pytest.raises(StorageFailed, match="entry 3 lies where 2 belongs"):
            journal.read(1, 4, ALL)
        await journal.close()
