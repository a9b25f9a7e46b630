"""Memory that is used again: a MiB of new memory costs more than it costs to seal it, since the kernel gives each page
at the first touch.

Sealing writes here what goes to the disk, and opening reads here what comes from it. Neither keeps any of it: what is
served or cached has memory of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

BUFFERS_KEPT_MAX: Final = 4
BUFFER_KEPT_BYTES_MAX: Final = 6 << 20
"""Together they bound what is kept. Whoever asks for more gets it, and it is not kept."""

_ROUNDED_TO: Final = 256 << 10


class ReusedMemory:
    """Owns the buffers that nobody has at the moment. Any thread.

    A buffer is lent to one at a time. It is lent again only after it came back and no view of it is left anywhere, so
    that whoever kept a view, by mistake or in the traceback of an error, keeps its bytes.
    """

    def __init__(self, buffers_max: int = BUFFERS_KEPT_MAX, bytes_max: int = BUFFER_KEPT_BYTES_MAX) -> None:
        """`bytes_max`: of one buffer that is kept."""
        self.made = 0
        """How many buffers there were in all."""
        self._buffers_max = buffers_max
        self._bytes_max = bytes_max
        self._guard = threading.Lock()
        self._free: list[bytearray] = []

    @property
    def kept_bytes(self) -> int:
        with self._guard:
            return sum(map(len, self._free))

    @contextlib.contextmanager
    def lent(self, size: int) -> Iterator[memoryview]:
        """`size` bytes with anything in them, for as long as the context lasts."""
        buffer = self._take(size)
        with memoryview(buffer) as whole, whole[:size] as view:
            yield view
        self._give_back(buffer)  # after an error it is left to whoever has its traceback

    def _take(self, size: int) -> bytearray:
        with self._guard:
            found = min((buffer for buffer in self._free if len(buffer) >= size), key=len, default=None)
            if found is not None:
                self._free = [buffer for buffer in self._free if buffer is not found]
                return found
            self.made += 1
        return bytearray(-(-size // _ROUNDED_TO) * _ROUNDED_TO)

    def _give_back(self, buffer: bytearray) -> None:
        if len(buffer) > self._bytes_max or _is_viewed(buffer):
            return
        with self._guard:
            self._free.append(buffer)
            if len(self._free) > self._buffers_max:
                self._free.remove(min(self._free, key=len))


def _is_viewed(buffer: bytearray) -> bool:
    """Whether a view of it is left: Python changes the length of no `bytearray` that has one. The memory stays where it
    is."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False


SEALING_MEMORY: Final = ReusedMemory()
"""Of this process. A broker without keys never makes a buffer."""
