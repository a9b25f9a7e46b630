"""Logs on disk to look into, as a journal leaves them, and ways to harm them."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterable
from pathlib import Path

import google_crc32c

from mq_broker.core.machine.window import WindowBounds
from mq_broker.storage.codec.frame import MAGIC_POSITION, unpack_header
from mq_broker.storage.inspecting.directory import PartitionFiles, files_of
from tests.mq_broker.storage.bed import PLACE, Bed, one_of_each_operation, operations_with_attributes
from tests.mq_broker.storage.bed import frame_of as bed_frame

SEGMENT_BYTES = 1_500


def written(path: Path, *, clean: bool = True, shorten: bool = False, durability: str = "fsync") -> PartitionFiles:
    """A log of several segments with every kind of entry, stopped cleanly or killed."""

    async def scene() -> Path:
        async with Bed(path, durability, segment_bytes_max=SEGMENT_BYTES) as bed:
            journal, heard, _ = bed.open()
            operations = [*one_of_each_operation(), *operations_with_attributes()]
            frames = [
                bed_frame(index, 1 + index // 20, bytes([index]) * (7 * index), operation)
                for index, operation in enumerate(operations, 1)
            ]
            for frame in frames:
                journal.append([frame])
            await heard.until_flushed(len(frames))
            if shorten:
                await journal.shorten_to(len(frames) // 2, WindowBounds(100))
            if clean:
                await journal.close()
            else:
                await bed.crash(journal)
            return bed.path

    return files_of(asyncio.run(scene()), PLACE)


def again(files: PartitionFiles) -> PartitionFiles:
    """The same directory, as it is now."""
    return files_of(files.path, PLACE)


def flip(path: Path, position: int, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def frame_positions(segment: Path) -> list[int]:
    """Where each frame of a good segment begins, and where the last one ends."""
    data = memoryview(segment.read_bytes())
    positions = [0]
    while positions[-1] < len(data):
        positions.append(positions[-1] + unpack_header(data, positions[-1]).frame_bytes)
    return positions


def resealed(frame: bytes) -> bytes:
    """With a checksum that holds, whatever the bytes say."""
    crc = google_crc32c.extend(PLACE.seed, frame[MAGIC_POSITION:])
    return struct.pack("<I", crc) + frame[MAGIC_POSITION:]


def everything_under(path: Path) -> dict[str, tuple[bytes, int, int]]:
    """Bytes, mtime and mode of every file and folder."""
    found = {}
    for each in [path, *_under(path)]:
        stat = each.lstat()
        content = each.read_bytes() if each.is_file() else b""
        found[str(each)] = (content, stat.st_mtime_ns, stat.st_mode)
    return found


def _under(path: Path) -> Iterable[Path]:
    return path.rglob("*")
