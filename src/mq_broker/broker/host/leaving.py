"""The end of a clean stop: each partition is closed, with a checkpoint where that spares the next start much.

Whoever stops a broker waits only so long for it. So checkpoints are begun for some time, those that spare most first;
the next start reads what the others would have spared it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic
from typing import Final

from mq_broker.broker.host.keeping import derived_now
from mq_broker.broker.host.partition import Partition
from mq_broker.storage.interface import Keeping
from mq_protocol.errors import TritonMQError

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""Partitions whose checkpoints are built in memory."""

BEGIN_S: Final = 10.0
"""After that no checkpoint is begun. Handing over has taken up to `stop_timeout_ms` before, and those that are begun
take their time: together less than the minute that Kubernetes is told to wait (deploy/kubernetes/tritonmq.yaml)."""


async def leave(partitions: Sequence[Partition], error: TritonMQError, *, keeps: bool) -> None:
    """Close all of them; what still waits ends with `error`. `keeps`: with checkpoints."""
    kept_by = ((partition, partition.journal.keeping if keeps else None) for partition in partitions)
    gains = [(0 if keeping is None else keeping.gain, partition, keeping) for partition, keeping in kept_by]
    gains.sort(key=lambda each: each[0], reverse=True)
    room, until = asyncio.Semaphore(AT_ONCE), monotonic() + BEGIN_S
    kept = await asyncio.gather(
        *(
            _keep(partition, keeping, error, room, until) if keeping is not None and gain else _close(partition, error)
            for gain, partition, keeping in gains
        )
    )
    late = sum(gain > 0 for gain, *_ in gains) - sum(kept)
    if late:
        log.warning("%d partitions were closed without a checkpoint, for want of time: the next start reads more", late)


async def _close(partition: Partition, error: TritonMQError) -> bool:
    await partition.close(error)
    return False


async def _keep(
    partition: Partition, keeping: Keeping, error: TritonMQError, room: asyncio.Semaphore, until: float
) -> bool:
    """Whether there was time for it."""
    async with room:
        if monotonic() < until:
            derived = derived_now(partition)
            await partition.close(error)
            if derived is not None:
                await keeping.keep(derived)
            return True
    return await _close(partition, error)
