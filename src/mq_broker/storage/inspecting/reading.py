"""Files opened to be read: never made, never changed, never waited for, and never read without a bound."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mq_protocol.errors import StorageFailed

SMALL_BYTES_MAX: Final = 1 << 20
"""Of a file that people can read: log.json, broker.json, why.txt."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of a regular file. Raises `OSError`, and `StorageFailed` for anything else than a file: a pipe would
    be waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StorageFailed(f"{path} is no file: move it out of the data directory")
        yield fd
    finally:
        os.close(fd)


def read_exactly(fd: int, size: int, position: int) -> bytes:
    """`size` bytes; fewer only at the end of the file. Raises `OSError`."""
    pieces: list[bytes] = []
    while size and (data := os.pread(fd, size, position)):
        pieces.append(data)
        size -= len(data)
        position += len(data)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_small(path: Path, bytes_max: int = SMALL_BYTES_MAX) -> bytes:
    """All of a file. Raises `OSError`, and `StorageFailed` for more than `bytes_max`, of which nothing is read."""
    with opened(path) as fd:
        size = os.fstat(fd).st_size
        if size > bytes_max:
            raise StorageFailed(f"{path} has {size} bytes, and no broker writes more than {bytes_max} there")
        return read_exactly(fd, bytes_max, 0)
