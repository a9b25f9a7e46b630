"""Checkpoints in the background, so that a start need not read what lies stored; and the scrub, which verifies that.

Both go from partition to partition, one at a time. What a checkpoint is and when it is believed is storage's
(storage/journal/checkpoints.py); here is only when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mq_broker.broker.host.keeping import derived_soon
from mq_broker.storage.interface import Keeping
from mq_protocol.errors import StorageFailed

if TYPE_CHECKING:
    from mq_broker.broker.host.partition import Partition
    from mq_broker.broker.host.shell import Shell

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 512 << 10
"""What the scrub reads at once, in a thread: small entries keep the interpreter for some ten milliseconds then."""

PART_OF_TIME: Final = 0.1
"""The scrub works for no larger part of the time than this, however small entries are."""

SCRUB_AGAIN_S: Final = 60.0


class Checkpoints:
    """Of the partitions whose next start would read much."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    @staticmethod
    def which(partition: Partition) -> object:
        keeping = partition.journal.keeping
        return keeping is not None and keeping.due >= 1

    async def look(self, partitions: Iterable[Partition]) -> None:
        """Store one of each, the one after the other."""
        for partition in partitions:
            keeping = partition.journal.keeping
            if keeping is None or partition.closed:
                continue
            if self._shell.failure.done():  # what is applied may be wrong
                return
            derived = await derived_soon(partition)
            if derived is not None:
                await keeping.keep(derived)


class Scrub:
    """Owns the pace: `bytes_per_s` at most."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s

    @staticmethod
    def which(partition: Partition) -> object:
        keeping = partition.journal.keeping
        return keeping is not None and keeping.unscrubbed_bytes

    async def look(self, partitions: Iterable[Partition]) -> float | None:
        """Verify what opening the journals did not read. Returns when what failed is tried again."""
        again_s = None
        for partition in partitions:
            try:
                while not partition.closed and await self._piece(partition.journal.keeping):
                    pass
            except StorageFailed as error:
                log.warning("%s: the scrub cannot go on (%s); it is tried again", partition.name, error)
                again_s = SCRUB_AGAIN_S
        return again_s

    async def _piece(self, keeping: Keeping | None) -> bool:
        """Whether there was something to verify. Returns when the next piece may be read."""
        if keeping is None or not keeping.unscrubbed_bytes:
            return False
        began_s = time.monotonic()
        nbytes = await keeping.scrub(min(PIECE_BYTES, self._bytes_per_s))
        took_s = time.monotonic() - began_s
        await asyncio.sleep(max(nbytes / self._bytes_per_s, took_s / PART_OF_TIME) - took_s)
        return True
