"""Says in the coordination service how far the data directory has come, so that an older copy of it is known by that.

What is kept there is never ahead of the directory (`storage/opening/directory.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from mq_broker.coordination.service import CoordinationService
from mq_broker.storage.opening.directory import DataDirectory
from mq_protocol.errors import CoordinationUnavailable, StorageFailed

log = logging.getLogger(__name__)

LAST_STAMP_S: Final = 2.0


class Stamps:
    """Made from the registration on, which nobody else may have: another directory under this broker's id would make
    this one look old."""

    def __init__(self, directory: DataDirectory, coordination: CoordinationService) -> None:
        self._directory = directory
        self._coordination = coordination

    async def last(self) -> None:
        """Of a clean stop, once this broker acknowledges nothing more; best effort."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_STAMP_S):
                await self.look()

    async def look(self) -> None:
        """How far it has come now: a copy that was taken before is known to be older."""
        try:
            stamp = await asyncio.to_thread(self._directory.raise_stamp)
            await self._coordination.keep_stamp(self._directory.broker, stamp)
        except (StorageFailed, CoordinationUnavailable) as error:
            log.info("an older copy of this data directory is told from a later moment on: %s", error)
