"""Reads of what lies sealed on the disk: what costs the event loop much is done in a thread, before the read."""

from __future__ import annotations

import contextlib

from mq_broker.storage.interface import Journal
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.errors import TritonMQError
from mq_protocol.limits import READ_BATCHES_MAX


async def open_apart(journal: Journal, index: OffsetIndex, start: int, end: int, bytes_max: int) -> None:
    """Before `Partition.read` of the same, if `journal.sealed`. Raises nothing: who reads is told."""
    with contextlib.suppress(TritonMQError):
        batches = index.range(start, end, bytes_max, READ_BATCHES_MAX)
        if batches:
            await journal.open_apart(batches[0].index, batches[-1].index)
