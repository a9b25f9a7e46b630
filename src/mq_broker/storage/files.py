"""The file operations that storage is built on, as a seam: the real ones by default, failing ones in tests.

Every method may raise `OSError`; what that means is decided by the caller (segments.py), never here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from mq_protocol.wire.envelope import Buffer

WRITE_PARTS_MAX = os.sysconf("SC_IOV_MAX")
"""How many buffers one write takes."""

_COPY_BYTES: Final = 4 << 20


class Files(Protocol):
    def open(self, path: Path) -> int:
        """A descriptor for reading and writing; the file is made if it is not there."""

    def close(self, fd: int) -> None: ...

    def size(self, fd: int) -> int:
        """In bytes."""

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def read_into(self, fd: int, room: memoryview, position: int) -> int:
        """As `read`, into `room`. Returns how many bytes of it were filled; fewer than all only at the end of the
        file."""

    def write(self, fd: int, parts: Sequence[Buffer], position: int) -> int:
        """The parts one after another, at most `WRITE_PARTS_MAX`. Returns how many bytes were taken, maybe fewer than
        given."""

    def sync(self, fd: int) -> None:
        """Data, and the size that is needed to read it, onto the disk."""

    def truncate(self, fd: int, size: int) -> None: ...

    def remove(self, path: Path) -> None: ...

    def move(self, source: Path, target: Path) -> None:
        """Within one file system, over what is there. Durable once both directories are synced."""

    def sync_directory(self, path: Path) -> None:
        """Names made, changed or removed in it, onto the disk."""

    def replace(self, path: Path, data: bytes) -> None:
        """The whole file, durably and at once: after a crash it is the old or the new one, never a part."""


class OsFiles:
    """The operating system's."""

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, size: int, position: int) -> bytes:
        data = os.pread(fd, size, position)
        if len(data) in (0, size):
            return data
        pieces = [data]
        done = len(data)
        while done < size and (data := os.pread(fd, size - done, position + done)):
            pieces.append(data)
            done += len(data)
        return b"".join(pieces)

    def read_into(self, fd: int, room: memoryview, position: int) -> int:
        done = 0
        while done < len(room) and (taken := os.preadv(fd, [room[done:]], position + done)):
            done += taken
        return done

    def write(self, fd: int, parts: Sequence[Buffer], position: int) -> int:
        return os.pwritev(fd, parts, position)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def remove(self, path: Path) -> None:
        path.unlink()

    def move(self, source: Path, target: Path) -> None:
        source.replace(target)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace(self, path: Path, data: bytes) -> None:
        new = path.with_name(path.name + ".new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        new.replace(path)
        self.sync_directory(path.parent)


def rewrite(files: Files, fd: int, start: int, end: int) -> None:
    """Write the same bytes again, so that the kernel takes them for unwritten: after a failed sync it takes them for
    written."""
    while start < end:
        data = files.read(fd, min(_COPY_BYTES, end - start), start)
        if not data:
            raise OSError(5, "the file ends before what was written to it")
        view = memoryview(data)
        while view:
            taken = files.write(fd, (view,), start)
            view = view[taken:]
            start += taken
