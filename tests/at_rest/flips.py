"""Bits of a sealed journal flipped, one at a time: by a disk, or by somebody who also puts the checksum right.

What may come of it is written in `EXPECTED`. What is served is always compared with what was written.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import google_crc32c

from mq_broker.core.machine.window import WindowBounds
from mq_broker.storage.files import OsFiles
from mq_broker.storage.journal.recovered import segment_key
from mq_broker.storage.journal.recovery import LogDamaged, recover
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.sealed import BLOCK_BYTES, SLOT_BYTES, SealedAway
from mq_protocol.errors import StorageFailed
from tests.mq_broker.storage.bed import PLACE, Bed, Keys, frame_of, joined

HEADER_BYTES: Final = 60
ENTRIES: Final = 8
SHORTENED_TO: Final = 4

BY_A_DISK: Final = "a bit"
BY_SOMEBODY: Final = "a bit, and its checksum put right"

EXPECTED: Final = {
    (BY_A_DISK, "segment"): {"damaged"},
    (BY_A_DISK, "copy of a key"): {"served as written"},  # the other copy opens it
    (BY_A_DISK, "snapshot"): {"damaged"},
    (BY_SOMEBODY, "segment"): {"altered", "damaged", "refused"},
    (BY_SOMEBODY, "copy of a key"): {"served as written", "refused", "wrong key", "no key"},
    (BY_SOMEBODY, "snapshot"): {"altered", "damaged", "refused", "wrong key", "no key"},
}
"""What may come of a flip, by how it is done and where. `refused`: it says that a newer version wrote it."""


class Journal:
    """A sealed journal of one segment behind a snapshot, stopped cleanly, in a directory of its own."""

    def __init__(self, path: Path) -> None:
        self.keys = Keyring("test:", Keys())
        self.frames = [frame_of(index, payload=bytes([index]) * (20 * index)) for index in range(1, ENTRIES + 1)]
        self.path = asyncio.run(self._written(path))
        [self.segment] = self.path.glob("*.log")
        self.snapshot = self.path / "snapshot"
        self.first = int(self.segment.stem)

    async def _written(self, path: Path) -> Path:
        async with Bed(path, segment_bytes_max=400) as bed:
            bed.keys = self.keys
            journal, heard, _ = bed.open()
            journal.append(self.frames[: SHORTENED_TO - 1])
            await heard.until_flushed(SHORTENED_TO - 1)
            bed.settings["segment_bytes_max"] = 1 << 20
            await journal.close()
            journal, heard, _ = bed.open()
            journal._begin_due = True  # type: ignore[attr-defined] # so that what follows is one segment
            journal.append(self.frames[SHORTENED_TO - 1 :])
            await heard.until_flushed(ENTRIES)
            assert await journal.shorten_to(SHORTENED_TO, WindowBounds(100)) == SHORTENED_TO
            await journal.close()
            return bed.path

    def outcome(self) -> str:
        """What opening it comes to, and reading all of it."""
        try:
            kept = recover(self.path, PLACE, OsFiles(), clean=True, lossy=False, rebooted=False, keys=self.keys)
        except LogDamaged:
            return "damaged"
        except SealedAway as error:
            return {"Altered": "altered", "WrongKey": "wrong key", "KeyAbsent": "no key"}[type(error).__name__]
        except StorageFailed:
            return "refused"
        files = OsFiles()
        fd = files.open(self.segment)
        try:
            key = segment_key(files, fd, PLACE, self.keys)
            assert key is not None, "it is sealed"
            data, at, found = memoryview(files.read(fd, files.size(fd), 0)), BLOCK_BYTES, []
            while at < len(data):
                frame, at = key.open(self.first, data, at)
                found.append(frame)
        finally:
            files.close(fd)
        wanted = [frame.entry for frame in self.frames[self.first - 1 :]]
        whole = kept.entries == wanted and joined(found) == joined(self.frames[self.first - 1 :])
        whole = whole and kept.snapshot is not None and kept.snapshot.last_index == self.first - 1
        return "served as written" if whole else "SERVED OTHERWISE"


def units_of(data: bytes) -> list[tuple[int, int]]:
    """Where the slots and units of a sealed segment begin and end."""
    spans, at = [], 0
    while at < len(data):
        size = HEADER_BYTES + int.from_bytes(data[at + 52 : at + 56], "little")
        spans.append((at, at + size))
        at += size
    return spans


def flipped(data: bytes, position: int, bit: int, span: tuple[int, int], *, repaired: bool) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    if repaired:
        start, end = span
        crc = google_crc32c.extend(PLACE.seed, bytes(changed[start + 4 : end]))
        changed[start : start + 4] = int(crc).to_bytes(4, "little")
    return bytes(changed)


def flips(path: Path, count: int, seed: int = 0) -> Iterator[tuple[str, str, int, int, str]]:
    """How it was flipped, where, which byte and bit, and what came of it: every byte in turn, both ways."""
    rng = random.Random(seed)
    journal = Journal(path)
    good = {each: each.read_bytes() for each in (journal.segment, journal.snapshot)}
    assert journal.outcome() == "served as written"
    places: list[tuple[Path, str, int, tuple[int, int]]] = []
    for start, end in units_of(good[journal.segment]):
        where = "copy of a key" if end - start == SLOT_BYTES and start < BLOCK_BYTES else "segment"
        places += [(journal.segment, where, position, (start, end)) for position in range(start, end)]
    size = len(good[journal.snapshot])
    places += [(journal.snapshot, "snapshot", position, (0, size)) for position in range(size)]
    rng.shuffle(places)
    for number in range(count):
        file, where, position, span = places[number // 2 % len(places)]
        repaired, bit = number % 2 == 1, rng.randrange(8)
        if repaired and position - span[0] < 4:
            continue  # of the checksum itself there is nothing to put right
        file.write_bytes(flipped(good[file], position, bit, span, repaired=repaired))
        outcome = journal.outcome()
        file.write_bytes(good[file])
        yield BY_SOMEBODY if repaired else BY_A_DISK, where, position, bit, outcome


def table(counts: Counter[tuple[str, str, str]]) -> str:
    rows = ["| flipped | in | came of it | times |", "|---|---|---|---|"]
    rows += [f"| {how} | {where} | {outcome} | {times:,} |" for (how, where, outcome), times in sorted(counts.items())]
    return "\n".join(rows) + "\n"


def unexpected(how: str, where: str, outcome: str) -> bool:
    return outcome not in EXPECTED[how, where]


def run(path: Path, count: int, seed: int = 0) -> tuple[Counter[tuple[str, str, str]], list[str]]:
    """How often what came of it, and what should not have."""
    counts: Counter[tuple[str, str, str]] = Counter()
    wrong: list[str] = []
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    for how, where, position, bit, outcome in flips(path, count, seed):
        counts[how, where, outcome] += 1
        if unexpected(how, where, outcome):
            wrong.append(f"{how}, bit {bit} of byte {position} of the {where}: {outcome}")
    return counts, wrong
