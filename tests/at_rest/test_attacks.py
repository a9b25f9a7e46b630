"""What somebody does who can write to the disk and has no key: parts of sealed journals put where others belong, with
every checksum right. None of it is served."""

from __future__ import annotations

import asyncio
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import pytest

from mq_broker.core.machine.window import WindowBounds
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.files import OsFiles
from mq_broker.storage.interface import Frame
from mq_broker.storage.journal.segments import segment_path
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.opening.directory import DataDirectory
from mq_broker.storage.sealed import BLOCK_BYTES, SLOT_BYTES, Altered, SealedAway, WrongKey
from mq_protocol.errors import StorageFailed
from tests.at_rest.flips import HEADER_BYTES, units_of
from tests.mq_broker.storage.bed import Heard, Keys, frame_of, joined

MINE, NEIGHBOUR, OTHER = Place("0c9a7e52", 3), Place("0c9a7e52", 4), Place("77aa0e52", 3)
SECOND, ENTRIES = 5, 8
"""The second segment's first entry, and the last one of all."""

ALL = 1 << 40


def frames(place: Place) -> list[Frame]:
    return [frame_of(index, payload=f"{place} {index}".encode() * 9, place=place) for index in range(1, ENTRIES + 1)]


class Disk:
    """A broker's data directory with journals of two segments, stopped."""

    def __init__(self, path: Path, keys: Keys) -> None:
        self.path = path
        self.keys = keys

    def write(self, place: Place, *, shortened: bool = False) -> None:
        async def scene() -> None:
            writer, directory, heard = Writer(OsFiles()), self._directory(), Heard()
            writer.start()
            size = sum(frame.size for frame in frames(place)[: SECOND - 1])
            opened = directory.open_journal(place, "fsync", size, heard, writer, topic="flights")
            opened.journal.append(frames(place))
            await heard.until_flushed(ENTRIES)
            if shortened:
                assert await opened.journal.shorten_to(SECOND, WindowBounds(100)) == SECOND
            await opened.journal.close()
            await writer.stop()
            directory.close()

        asyncio.run(scene())

    def read(self, place: Place) -> tuple[bytes, str]:
        """What is served of a journal as bytes, and what was put aside as damaged, if anything was. Raises as opening
        it does."""

        async def scene() -> tuple[bytes, str]:
            writer, directory = Writer(OsFiles()), self._directory()
            writer.start()
            try:
                opened = directory.open_journal(place, "fsync", 0, Heard(), writer, cache_bytes_max=0)
                journal = opened.journal
                served = journal.read(journal.first_index, journal.last_index, ALL) if journal.last_index else []
                await journal.close()
                return joined(served), opened.damaged
            finally:
                await writer.stop()
                directory.close()

        return asyncio.run(scene())

    def at(self, place: Place) -> Path:
        return self.path / "partitions" / f"{place.topic_id}-{place.partition}"

    def segment(self, place: Place, first: int = 1) -> bytes:
        return segment_path(self.at(place), first).read_bytes()

    def _directory(self) -> DataDirectory:
        return DataDirectory.open(self.path, 1, keys=Keyring("test:", self.keys))


@dataclass
class Scene:
    """Two brokers with keys of their own, and a third that has those of the first. Each method gives bytes to write."""

    mine: Disk
    elsewhere: Disk
    replica: Disk

    def first(self) -> bytes:
        return self.mine.segment(MINE)

    def second(self) -> bytes:
        return self.mine.segment(MINE, SECOND)


def right(data: bytes, place: Place = MINE) -> bytes:
    """Every checksum of a segment put right for that place."""
    changed = bytearray(data)
    for start, end in units_of(data):
        crc = int(google_crc32c.extend(place.seed, bytes(changed[start + 4 : end])))
        changed[start : start + 4] = crc.to_bytes(4, "little")
    return bytes(changed)


def parts(segment: bytes) -> tuple[bytes, list[bytes]]:
    """The block of a segment, and its units."""
    spans = units_of(segment)
    return segment[:BLOCK_BYTES], [segment[start:end] for start, end in spans if start >= BLOCK_BYTES]


def numbered(units: list[bytes], first: int = 1) -> bytes:
    """The units one after the other, as the entries from `first` on."""
    return b"".join(unit[:8] + struct.pack("<Q", index) + unit[16:] for index, unit in enumerate(units, first))


def resized(unit: bytes, by: int) -> bytes:
    """The unit with so many bytes more of zeros, or fewer."""
    size = max(0, int.from_bytes(unit[52:56], "little") + by)
    body = unit[HEADER_BYTES:][:size].ljust(size, b"\0")
    return unit[:52] + size.to_bytes(4, "little") + unit[56:HEADER_BYTES] + body


def flipped(unit: bytes, at: int) -> bytes:
    return unit[:at] + bytes([unit[at] ^ 1]) + unit[at + 1 :]


def changed_units(change: Callable[[list[bytes]], list[bytes]], *, renumber: bool = True) -> Callable[[Scene], bytes]:
    """The first segment with its units changed."""

    def data(scene: Scene) -> bytes:
        block, units = parts(scene.first())
        units = change(units)
        return right(block + (numbered(units) if renumber else b"".join(units)))

    return data


def with_block_of(block: Callable[[Scene], bytes]) -> Callable[[Scene], bytes]:
    return lambda scene: right(block(scene)[:BLOCK_BYTES] + scene.first()[BLOCK_BYTES:])


def with_unit_of(other: Callable[[Scene], bytes]) -> Callable[[Scene], bytes]:
    """The second entry is the second one of another segment."""

    def data(scene: Scene) -> bytes:
        block, units = parts(scene.first())
        return right(block + numbered([units[0], parts(other(scene))[1][1], *units[2:]]))

    return data


ALTERED, WRONG_KEY, DAMAGED, REFUSED = "altered", "wrong key", "damaged", "refused"

INSTEAD_OF_THE_FIRST: dict[str, tuple[str, Callable[[Scene], bytes]]] = {
    "the segment of another partition": (DAMAGED, lambda s: s.mine.segment(NEIGHBOUR)),
    "the segment of another partition, put right": (WRONG_KEY, lambda s: right(s.mine.segment(NEIGHBOUR))),
    "the segment of another topic, put right": (WRONG_KEY, lambda s: right(s.mine.segment(OTHER))),
    "the segment of a broker with other keys": (WRONG_KEY, lambda s: s.elsewhere.segment(MINE)),
    "the segment of later entries": (ALTERED, lambda s: s.second()),
    "the segment of later entries, numbered anew": (
        ALTERED,
        lambda s: right(s.second()[:BLOCK_BYTES] + numbered(parts(s.second())[1])),
    ),
    "the head of another partition, put right": (WRONG_KEY, with_block_of(lambda s: right(s.mine.segment(NEIGHBOUR)))),
    "the head of later entries": (ALTERED, with_block_of(Scene.second)),
    "the head of a replica with the same keys": (ALTERED, with_block_of(lambda s: s.replica.segment(MINE))),
    "the head of a broker with other keys": (WRONG_KEY, with_block_of(lambda s: s.elsewhere.segment(MINE))),
    "no head": (REFUSED, lambda s: s.first()[BLOCK_BYTES:]),
    "half a head": (DAMAGED, lambda s: s.first()[SLOT_BYTES:]),
    "an entry of another partition": (ALTERED, with_unit_of(lambda s: s.mine.segment(NEIGHBOUR))),
    "an entry of another topic": (ALTERED, with_unit_of(lambda s: s.mine.segment(OTHER))),
    "an entry of later ones": (ALTERED, with_unit_of(Scene.second)),
    "the entry of a replica with the same keys": (ALTERED, with_unit_of(lambda s: s.replica.segment(MINE))),
    "two entries exchanged": (DAMAGED, changed_units(lambda u: [u[0], u[2], u[1], u[3]], renumber=False)),
    "two entries exchanged, numbered anew": (ALTERED, changed_units(lambda u: [u[0], u[2], u[1], u[3]])),
    "an entry twice, numbered anew": (ALTERED, changed_units(lambda u: [u[0], u[1], u[1], u[2]])),
    "an entry left out": (DAMAGED, changed_units(lambda u: [u[0], u[2], u[3]], renumber=False)),
    "an entry left out, numbered anew": (ALTERED, changed_units(lambda u: [u[0], u[2], u[3]])),
    "an entry made shorter": (ALTERED, changed_units(lambda u: [u[0], resized(u[1], -8), *u[2:]])),
    "an entry made longer": (ALTERED, changed_units(lambda u: [u[0], resized(u[1], 8), *u[2:]])),
    "an entry without its tag": (ALTERED, changed_units(lambda u: [u[0], resized(u[1], -16), *u[2:]])),
    "an entry of no bytes": (ALTERED, changed_units(lambda u: [u[0], resized(u[1], -1 << 20), *u[2:]])),
    "another nonce": (ALTERED, changed_units(lambda u: [u[0], flipped(u[1], 20), *u[2:]])),
    "another tag": (ALTERED, changed_units(lambda u: [u[0], flipped(u[1], len(u[1]) - 1), *u[2:]])),
    "the last entry cut off": (DAMAGED, changed_units(lambda u: u[:3])),
}
"""What comes of it, and what is written in place of a partition's first segment."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written")
    keys, others = Keys(), Keys()
    others.salt = "another"
    for name, held in (("mine", keys), ("replica", keys), ("elsewhere", others)):
        for place in (MINE, NEIGHBOUR, OTHER):
            Disk(path / name, held).write(place)
    for place in (MINE, NEIGHBOUR):
        Disk(path / "shortened", keys).write(place, shortened=True)
    return path


@pytest.fixture
def scene(written: Path, tmp_path: Path) -> Scene:
    shutil.copytree(written, tmp_path / "disks")
    keys, others = Keys(), Keys()
    others.salt = "another"
    disks = tmp_path / "disks"
    return Scene(Disk(disks / "mine", keys), Disk(disks / "elsewhere", others), Disk(disks / "replica", keys))


def outcome(disk: Disk, place: Place = MINE) -> str:
    """What opening the journal comes to. Whatever is served is what was written, from the beginning on."""
    before = {path: path.read_bytes() for path in disk.at(place).rglob("*") if path.is_file()}
    whole = joined(frames(place))
    try:
        served, damaged = disk.read(place)
    except (SealedAway, StorageFailed) as error:
        assert {path: path.read_bytes() for path in disk.at(place).rglob("*") if path.is_file()} == before
        return {Altered: ALTERED, WrongKey: WRONG_KEY}.get(type(error), REFUSED)
    in_its_place = whole.endswith(served) if (disk.at(place) / "snapshot").exists() else whole.startswith(served)
    assert in_its_place, "it served what was not written there"
    return DAMAGED if damaged else "served"


def test_what_was_written_is_served(scene: Scene) -> None:
    for disk in (scene.mine, scene.elsewhere, scene.replica):
        for place in (MINE, NEIGHBOUR, OTHER):
            assert disk.read(place) == (joined(frames(place)), "")


@pytest.mark.parametrize("case", INSTEAD_OF_THE_FIRST)
def test_what_lies_in_place_of_a_segment_is_told_and_not_served(scene: Scene, case: str) -> None:
    expected, data = INSTEAD_OF_THE_FIRST[case]
    segment_path(scene.mine.at(MINE), 1).write_bytes(data(scene))
    assert outcome(scene.mine) == expected
    assert outcome(scene.mine, NEIGHBOUR) == "served"


def test_two_segments_that_were_exchanged_are_not_served(scene: Scene) -> None:
    first, second = scene.first(), scene.second()
    segment_path(scene.mine.at(MINE), 1).write_bytes(second)
    segment_path(scene.mine.at(MINE), SECOND).write_bytes(first)
    assert outcome(scene.mine) == ALTERED


def test_the_directory_of_another_partition_or_topic_is_not_served(scene: Scene) -> None:
    mine = scene.mine
    for other in (NEIGHBOUR, OTHER):
        shutil.rmtree(mine.at(MINE))
        shutil.copytree(mine.at(other), mine.at(MINE))
        assert outcome(mine) == REFUSED  # log.json says whose it is
        name = (mine.at(MINE) / "log.json").read_text()
        name = name.replace(other.topic_id, MINE.topic_id).replace('"partition": 4', '"partition": 3')
        (mine.at(MINE) / "log.json").write_text(name)
        for path in mine.at(MINE).glob("*.log"):
            path.write_bytes(right(path.read_bytes()))
        assert outcome(mine) == WRONG_KEY


def test_a_snapshot_of_another_partition_or_with_another_key_is_not_served(scene: Scene) -> None:
    disk = Disk(scene.mine.path.parent / "shortened", scene.mine.keys)
    mine, theirs = ((disk.at(place) / "snapshot").read_bytes() for place in (MINE, NEIGHBOUR))
    slot = disk.segment(MINE, SECOND)[:SLOT_BYTES]

    def put_right(data: bytes) -> bytes:
        inner = data[16 : 16 + SLOT_BYTES]
        inner = int(google_crc32c.extend(MINE.seed, inner[4:])).to_bytes(4, "little") + inner[4:]
        data = data[:16] + inner + data[16 + SLOT_BYTES :]
        return int(google_crc32c.extend(MINE.seed, data[4:])).to_bytes(4, "little") + data[4:]

    for data, expected in (
        (put_right(theirs), WRONG_KEY),
        (put_right(mine[: 16 + SLOT_BYTES] + theirs[16 + SLOT_BYTES :]), ALTERED),
        (put_right(theirs[: 16 + SLOT_BYTES] + mine[16 + SLOT_BYTES :]), WRONG_KEY),
        (put_right(mine[:16] + slot + mine[16 + SLOT_BYTES :]), ALTERED),
        (put_right(flipped(mine, len(mine) - 1)), ALTERED),
    ):
        (disk.at(MINE) / "snapshot").write_bytes(data)
        assert outcome(disk) == expected
