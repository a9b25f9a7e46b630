"""Checkpoints in the background, so that a start need not read what lies stored; and the scrub, which verifies that.

Both go from partition to partition, one at a time. What a checkpoint is and when it is believed is storage's
(storage/journal/checkpoints.py); here is only when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from mq_broker.broker.host.keeping import derived_soon
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.storage.interface import Keeping
from mq_protocol.errors import StorageFailed

if TYPE_CHECKING:
    from mq_broker.broker.host.shell import Shell

log = logging.getLogger(__name__)

CHECK_S: Final = 5.0

PIECE_BYTES: Final = 512 << 10
"""What the scrub reads at once, in a thread: small entries keep the interpreter for some ten milliseconds then."""

PART_OF_TIME: Final = 0.1
"""The scrub works for no larger part of the time than this, however small entries are."""

SCRUB_AGAIN_S: Final = 60.0


class Checkpoints:
    """Owns the turn of this broker's partitions."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def keep(self) -> None:
        """Store a checkpoint of each partition whose next start would read much. Runs until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.keep_due()

    async def keep_due(self) -> None:
        """Of those that are due now, the one after the other."""
        async for partition in in_turns(self._shell.partitions()):
            keeping = partition.journal.keeping
            if keeping is None or partition.closed or keeping.due < 1:
                continue
            if self._shell.failure.done():  # what is applied may be wrong
                return
            derived = await derived_soon(partition)
            if derived is not None:
                await keeping.keep(derived)


class Scrub:
    """Owns the pace. `bytes_per_s` at most; 0: never."""

    def __init__(self, shell: Shell, bytes_per_s: int) -> None:
        self._shell = shell
        self._bytes_per_s = bytes_per_s

    async def keep(self) -> None:
        """Verify what opening the journals did not read. Runs until cancelled."""
        while self._bytes_per_s:
            await asyncio.sleep(CHECK_S)
            async for partition in in_turns(self._shell.partitions()):
                try:
                    while not partition.closed and await self._piece(partition.journal.keeping):
                        pass
                except StorageFailed as error:
                    log.warning("%s: the scrub cannot go on (%s); it is tried again", partition.name, error)
                    await asyncio.sleep(SCRUB_AGAIN_S)

    async def _piece(self, keeping: Keeping | None) -> bool:
        """Whether there was something to verify. Returns when the next piece may be read."""
        if keeping is None or not keeping.unscrubbed_bytes:
            return False
        began_s = time.monotonic()
        nbytes = await keeping.scrub(min(PIECE_BYTES, self._bytes_per_s))
        took_s = time.monotonic() - began_s
        await asyncio.sleep(max(nbytes / self._bytes_per_s, took_s / PART_OF_TIME) - took_s)
        return True
