"""Says in the coordination service how far the data directory has come, so that an older copy of it is known by that.

What is kept there is never ahead of the directory (`storage/opening/directory.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from mq_broker.coordination.interface import CoordinationService
from mq_broker.storage.opening.directory import DataDirectory
from mq_protocol.errors import CoordinationUnavailable, StorageFailed

log = logging.getLogger(__name__)

STAMP_S: Final = 600.0
"""A copy that was taken of a running broker is known to be older from then on, at the latest."""

LAST_STAMP_S: Final = 2.0


class Stamps:
    """Owns nothing."""

    def __init__(self, directory: DataDirectory, coordination: CoordinationService) -> None:
        self._directory = directory
        self._coordination = coordination

    async def keep(self) -> None:
        """From the registration on, which nobody else may have: another directory under this broker's id would make
        this one look old. Runs until cancelled."""
        while True:
            await self._stamp()
            await asyncio.sleep(STAMP_S)

    async def last(self) -> None:
        """Of a clean stop, once this broker acknowledges nothing more; best effort."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_STAMP_S):
                await self._stamp()

    async def _stamp(self) -> None:
        try:
            stamp = await asyncio.to_thread(self._directory.raise_stamp)
            await self._coordination.keep_stamp(self._directory.broker, stamp)
        except (StorageFailed, CoordinationUnavailable) as error:
            log.info("an older copy of this data directory is told from a later moment on: %s", error)
