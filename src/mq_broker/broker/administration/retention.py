"""Retention: what is old, or too much, is dropped, and journals are shortened to what is still needed.

The leader of a partition says what may go, by an entry (`Trim`), so that every replica's log starts at the same offset
and goes on so after a failover (trap 23). Each replica then shortens its own journal, in whole segments and in its own
time, as far as rule 13 allows: a snapshot stands for what was before. Nothing here decides what a snapshot is or when
an entry may go.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from mq_broker.broker.administration.consumed import Consumed
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.core.entries import Trim
from mq_protocol.errors import StorageFailed, TritonMQError
from mq_protocol.limits import REQUEST_TIMEOUT_MS
from mq_protocol.names import quoted

log = logging.getLogger(__name__)

TURN_S: Final = 120.0
"""Of one partition: what takes longer is left, and taken up again in its next turn. A gigabyte is read in a few
seconds."""

SHORTENINGS_AT_ONCE: Final = 2
"""Each reads what it drops, in a thread: they must not take the disk from the writer."""

JUMP_US: Final = 10_000_000
BELIEVED_AFTER_S: Final = 3_600.0
"""For how long a wall clock must stay ahead before retention goes by it: what an operator has to set it right."""


class _Left(NamedTuple):
    """What was believed before the wall clock was set back, and by `passed_s` since when it is."""

    wall_us: int
    passed_s: float
    since_s: float


class RetentionClock:
    """Owns what this broker takes for the time when it asks how old records are. Trap 21.

    It is the wall clock, unless that jumps forward: set to next year it would make every record old, and what is
    dropped is gone. Such a jump is logged as an error at once, and time goes on as the monotonic clock has it until the
    wall clock has been ahead for `BELIEVED_AFTER_S`. A clock that is set back is believed at once: nothing is lost by
    it. If it is set right again within `BELIEVED_AFTER_S`, that is believed at once too: else records with a delay
    would wait for so long. The clock that a broker starts with is believed, there is nothing to compare it with.

    `wall_us`: microseconds since 1970; `passed_s`: seconds of a clock that nobody sets and that goes on while the
    machine sleeps.
    """

    def __init__(
        self,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        passed_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._wall_us = wall_us
        self._passed_s = passed_s
        self._believed = wall_us(), passed_s()
        self._ahead_since: float | None = None
        self._left: _Left | None = None

    def now_us(self) -> int:
        """Microseconds since 1970, for ages and for what is due."""
        wall_us, passed_s = self._wall_us(), self._passed_s()
        then_us, then_s = self._believed
        expected_us = then_us + int((passed_s - then_s) * 1_000_000)
        ahead_us = wall_us - expected_us
        self._note_set_back(ahead_us, passed_s)
        if ahead_us > JUMP_US and not self._is_set_right(wall_us, passed_s):
            if self._ahead_since is None:
                self._ahead_since = passed_s
                log.error(
                    "the wall clock jumped %.0f s forward: set it right within %.0f s, for then retention goes by it "
                    "and drops what is old by it",
                    ahead_us / 1e6,
                    BELIEVED_AFTER_S,
                )
            if passed_s - self._ahead_since < BELIEVED_AFTER_S:
                return expected_us
            log.warning("retention goes by the wall clock again, which has been ahead for %.0f s", BELIEVED_AFTER_S)
        self._ahead_since = None
        self._believed = wall_us, passed_s
        return wall_us

    def _note_set_back(self, ahead_us: int, passed_s: float) -> None:
        if self._left is not None and passed_s - self._left.since_s >= BELIEVED_AFTER_S:
            self._left = None
        if self._left is None and ahead_us < -JUMP_US:
            self._left = _Left(*self._believed, passed_s)

    def _is_set_right(self, wall_us: int, passed_s: float) -> bool:
        """Whether the wall clock is no further on than it would be if nobody had set it back. It may be behind."""
        left = self._left
        if left is None:
            return False
        behind_us = left.wall_us + int((passed_s - left.passed_s) * 1_000_000) - wall_us
        if abs(behind_us) <= JUMP_US:
            self._left = None
        return behind_us >= -JUMP_US


class Retention:
    """Owns the turns of this broker's partitions: each has its own, one at a time, so that one that is stuck delays no
    other."""

    def __init__(self, shell: Shell, consumed: Consumed, clock: RetentionClock | None = None) -> None:
        self._shell = shell
        self._consumed = consumed
        self._clock = clock or RetentionClock()
        self._turns: set[Partition] = set()
        self._held_back: dict[Partition, str] = {}
        self._shortenings = asyncio.Semaphore(SHORTENINGS_AT_ONCE)

    async def look(self) -> None:
        """Begin a turn of every partition that has something to drop. For one that has not, that is a search in its
        index of offsets."""
        now_us = self._clock.now_us()
        async for partition in in_turns(self._shell.partitions()):
            if partition not in self._turns and not partition.closed:
                self._begin_turn(partition, now_us)
        self._held_back = {p: group for p, group in self._held_back.items() if not p.closed}

    def _begin_turn(self, partition: Partition, now_us: int) -> None:
        offset = _trim_to(partition, now_us)
        partition.held_by = ""
        if offset is not None:
            offset = self._needed_from(partition, offset)
        offset = self._or_consumed(partition, offset)
        if offset is None and not (partition.shorten_due or partition.topic.internal):
            return
        self._turns.add(partition)
        turn = self._shell.spawn(self._turn(partition, offset), f"retention of {partition.name}")
        turn.add_done_callback(lambda _: self._turns.discard(partition))

    def _or_consumed(self, partition: Partition, offset: int | None) -> int | None:
        """The offset, or the higher one below which every group is done with all, by whole batches."""
        needed = self._consumed.needed(partition)
        if needed is None:
            return offset
        partition.held_by = needed.group
        start = partition.index.batch_start(needed.offset)
        return max(start, offset or 0) if start > partition.replica.machine.log_start_offset else offset

    def _needed_from(self, partition: Partition, offset: int) -> int | None:
        """The offset, or the lower one that a queue group needs; None if nothing below it may go. What no group has
        settled stays, unless the topic is set otherwise."""
        held_by = ""
        if not partition.topic.settings.retention_over_queues:
            known = partition.replica.machine.work
            for group, queue in partition.topic.spec.queues.items():
                if not queue.start_us and (group not in known or known[group].life < queue.life):
                    offset, held_by = 0, group  # it is about to begin
            for group, state in known.items():
                if (needed_from := state.needed_from()) < offset:
                    offset, held_by = needed_from, group
        partition.held_by = held_by
        if held_by != self._held_back.get(partition, ""):
            self._held_back.pop(partition, None)
            if held_by:
                self._held_back[partition] = held_by
                log.warning(
                    "%s: retention is held back at offset %d by queue group %s, which has not settled that record "
                    "(`tritonmq queue describe`); retention_over_queues=true would drop it",
                    partition.name,
                    offset,
                    quoted(held_by),
                )
        return offset if offset > partition.replica.machine.log_start_offset else None

    async def _turn(self, partition: Partition, offset: int | None) -> None:
        try:
            async with asyncio.timeout(TURN_S):
                if offset is not None:
                    await _trim(partition, offset)
                async with self._shortenings:
                    await partition.shorten()
        except TimeoutError:
            partition.shorten_due = True
            log.warning(
                "%s: retention took longer than %g s, it is tried again: look at this broker's disk",
                partition.name,
                TURN_S,
            )
        except StorageFailed as error:
            log.warning("%s: its journal cannot be shortened: %s", partition.name, error)


def _trim_to(partition: Partition, now_us: int) -> int | None:
    """The offset below which records may go; None if there are none, or another broker says so."""
    settings = partition.topic.settings
    if (settings.retention_ms is None and settings.retention_bytes is None) or not partition.serving:
        return None
    older_than_us = 0 if settings.retention_ms is None else now_us - settings.retention_ms * 1000
    bytes_max = -1 if settings.retention_bytes is None else settings.retention_bytes
    offset = partition.index.retention_offset(older_than_us, bytes_max)
    return offset if offset > partition.replica.machine.log_start_offset else None


async def _trim(partition: Partition, offset: int) -> None:
    try:
        await partition.ask(Trim(offset), asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000)
        log.info("%s: records below offset %d are dropped by retention", partition.name, offset)
    except TritonMQError as error:  # another leader, or the next turn, does it
        log.info("%s: records below offset %d could not be dropped: %s", partition.name, offset, error)
