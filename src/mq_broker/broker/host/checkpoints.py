"""Checkpoints, so that a start need not read what lies stored: in the background, and at a clean stop; and the scrub,
which verifies what was not read.

What is done in the background goes from partition to partition, one at a time. Whoever stops a broker waits only so
long for it: checkpoints are begun for some time, those that spare most first, and the next start reads what the others
would have spared it. What a checkpoint is and when it is believed is storage's (storage/journal/checkpoints.py); here
is only when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.storage.interface import Derived, Keeping
from mq_protocol.errors import StorageFailed, TritonMQError

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 512 << 10
"""What the scrub reads at once, in a thread: small entries keep the interpreter for some ten milliseconds then."""

PART_OF_TIME: Final = 0.1
"""The scrub works for no larger part of the time than this, however small entries are."""

SCRUB_AGAIN_S: Final = 60.0

COPIED_AT_ONCE: Final = 4 << 20
"""Bytes of an index of offsets that are copied between two turns of the loop: less than a millisecond."""

AT_ONCE: Final = 4
"""Partitions whose checkpoints are built in memory."""

BEGIN_S: Final = 10.0
"""After that no checkpoint is begun. Handing over has taken up to `stop_timeout_ms` before, and those that are begun
take their time: together less than the minute that Kubernetes is told to wait (deploy/kubernetes/tritonmq.yaml)."""


class Checkpoints:
    """Of the partitions whose next start would read much. `failed`: whether the broker has."""

    def __init__(self, failed: Callable[[], bool]) -> None:
        self._failed = failed

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
            if self._failed():  # what is applied may be wrong
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


# ---------------------------------------------------------------- at a clean stop


async def leave(partitions: Sequence[Partition], error: TritonMQError, *, keeps: bool) -> None:
    """Close all of them; what still waits ends with `error`. `keeps`: with checkpoints."""
    kept_by = ((partition, partition.journal.keeping if keeps else None) for partition in partitions)
    gains = [(0 if keeping is None else keeping.gain, partition, keeping) for partition, keeping in kept_by]
    gains.sort(key=lambda each: each[0], reverse=True)
    room, until = asyncio.Semaphore(AT_ONCE), time.monotonic() + BEGIN_S
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
        if time.monotonic() < until:
            derived = derived_now(partition)
            await partition.close(error)
            if derived is not None:
                await keeping.keep(derived)
            return True
    return await _close(partition, error)


# ---------------------------------------------------------------- what is kept


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
