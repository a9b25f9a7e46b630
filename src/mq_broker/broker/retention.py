"""Retention: what is old, or too much, is dropped, and journals are shortened to what is still needed.

The leader of a partition says what may go, by an entry (`Trim`), so that every replica's log starts at the same offset and goes on
so after a failover (trap 23). Each replica then shortens its own journal, in whole segments and in its own time, as far as rule 13
allows: a snapshot stands for what was before. Nothing here decides what a snapshot is or when an entry may go.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from mq_broker.broker.partition import Partition
from mq_broker.broker.shell import Shell
from mq_broker.core.entries import Trim
from mq_protocol.errors import StorageFailed, TritonMQError
from mq_protocol.limits import REQUEST_TIMEOUT_MS

log = logging.getLogger(__name__)

CHECK_S: Final = 2.0
"""How late retention may be. A check of a partition that has nothing to drop is a search in its index of offsets."""


async def keep_retention(shell: Shell) -> None:
    """Every partition of this broker, one after another, now and then. Runs until cancelled."""
    while True:
        await asyncio.sleep(CHECK_S)
        for partition in shell.partitions():
            if partition.serving:
                await _trim(partition)
            if partition.shorten_due or partition.topic.internal:
                try:
                    await partition.shorten()
                except StorageFailed as error:
                    log.warning("%s: its journal cannot be shortened: %s", partition.name, error)


async def _trim(partition: Partition) -> None:
    settings = partition.topic.settings
    if settings.retention_ms is None and settings.retention_bytes is None:
        return
    older_than_us = 0 if settings.retention_ms is None else time.time_ns() // 1000 - settings.retention_ms * 1000
    bytes_max = -1 if settings.retention_bytes is None else settings.retention_bytes
    offset = partition.index.retention_offset(older_than_us, bytes_max)
    if offset <= partition.replica.machine.log_start_offset:
        return
    try:
        await partition.ask(Trim(offset), asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000)
        log.info("%s: records below offset %d are dropped by retention", partition.name, offset)
    except TritonMQError as error:  # another leader, or the next check, does it
        log.info("%s: records below offset %d could not be dropped: %s", partition.name, offset, error)
