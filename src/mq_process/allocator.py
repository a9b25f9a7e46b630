"""What a process that moves batches asks of the C library's allocator. Not the wire, but both of its ends need it.

glibc gives memory back to the kernel as soon as a little of it is free on top of a heap. Buffers of a message's size
then come and go as fresh pages, each of which costs a fault and is cleared: a tenth of a broker's processor time while
it is read from, and a fifth of a reader's.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Final

KEPT_BYTES_MAX: Final = 32 << 20
"""What may stay free on top of a heap: some messages. A process has a heap for each of its busy threads, eight a core
at most."""

HEAP_BUFFER_BYTES_MAX: Final = 16 << 20
"""Larger buffers are mapped by themselves, and given back when they are freed: batches of a size that is not usual."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


@functools.cache
def keep_freed_memory() -> bool:
    """Have this process keep what it frees, up to the bounds above. Once is enough.

    False where the C library has no such knob: then all is as it was.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library, or none that can be asked
        return False
    return bool(mallopt(_MMAP_THRESHOLD, HEAP_BUFFER_BYTES_MAX)) and bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX))
