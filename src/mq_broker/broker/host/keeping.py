"""What a partition has derived from its journal, to be stored with it as a checkpoint."""

from __future__ import annotations

import asyncio
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.storage.interface import Derived

COPIED_AT_ONCE: Final = 4 << 20
"""Bytes of an index of offsets that are copied between two turns of the loop: less than a millisecond."""


def derived_now(partition: Partition) -> Derived | None:
    """All of it, at once. None if nothing is applied."""
    state = partition.replica.applied_state()
    for index in partition.index.freezing():
        if index is not None and state.last_index:
            return Derived(state, index)
    return None


async def derived_soon(partition: Partition) -> Derived | None:
    """As it is now, copied over several turns of the loop. None if that was not to be had: it is tried again later."""
    state = partition.replica.applied_state()
    for index in partition.index.freezing(COPIED_AT_ONCE):
        if index is not None:
            return Derived(state, index) if state.last_index and not partition.closed else None
        await asyncio.sleep(0)
    return None
