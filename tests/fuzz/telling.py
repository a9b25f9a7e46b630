"""What an error may show of bytes that were read."""

from __future__ import annotations

from typing import Final

TOLD_BYTES_MAX: Final = 4_000


def check_told(error: Exception) -> None:
    """It shows little of them, in one line that nothing which was read can forge."""
    told = str(error)
    assert len(told.encode()) <= TOLD_BYTES_MAX
    assert told.isprintable()
