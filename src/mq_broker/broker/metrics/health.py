"""Whether this broker is to be sent work, and who is told: clients, HTTP and systemd ask the same object.

A broker is ready once all that is assigned to it is open and in sync again: what stays closed is neither. So whoever
restarts brokers one after another, and waits for each to be ready, never takes a second replica away before the first
is back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.measured import ALARMS
from mq_broker.storage.sealed import Altered, SealedAway
from mq_protocol.errors import CoordinationUnavailable

log = logging.getLogger(__name__)

READS_AT_ONCE: Final = 16


class Readiness:
    """Owns whether this broker has been ready in this life. Once it is, it stays so until it drains: losing ZooKeeper,
    or a follower that falls behind later, must not take every broker out of service. `state`: of the broker."""

    def __init__(self, shell: Shell, state: Callable[[], str], timeout_s: float) -> None:
        """`timeout_s`: after so long it is ready whatever is not in sync, which is an alarm. While it lacks a key it
        is not: whoever gave it the wrong keys would give them to the next broker too."""
        self.ready = asyncio.Event()
        self._shell = shell
        self._state = state
        self._timeout_s = timeout_s
        self._behind: list[str] = []
        self._without_key = False
        self._in_sync: set[Partition] = set()
        self._deadline = math.inf

    def why_not(self) -> str:
        """Why this broker is to be sent no work yet, or no more; empty if it is."""
        state = self._state()
        if state != "serving":
            return state
        if self.ready.is_set():
            return ""
        if not self._behind:
            return "looking at which replicas are in sync"
        more = f" and {len(self._behind) - 5} more" if len(self._behind) > 5 else ""
        return f"not in sync yet: {', '.join(self._behind[:5])}{more}"

    async def look(self) -> float | None:
        """Whether it is ready, from when the broker serves on. Returns `math.inf` if it is."""
        now = asyncio.get_running_loop().time()
        self._deadline = min(self._deadline, now + self._timeout_s)
        self._behind = await self._not_in_sync()
        if self._behind:
            if asyncio.get_running_loop().time() < self._deadline or self._without_key:
                return None
            ALARMS.add("ready_without_sync")
            log.warning(
                "this broker counts as ready although %d of its replicas are not in sync after %g s: %s",
                len(self._behind),
                self._timeout_s,
                ", ".join(self._behind[:5]),
            )
        self.ready.set()
        log.info("ready%s", "" if self._behind else ": everything assigned to this broker is open and in sync")
        return math.inf

    async def _not_in_sync(self) -> list[str]:
        """Those that are not open, and why, then those that are not in sync. One that has been found to be is not
        looked at again."""
        behind: list[str] = []
        doubtful: list[Partition] = []
        self._without_key = False
        async for topic, number in in_turns(self._shell.assigned()):
            partition = self._shell.hosted(topic, number)
            if partition is None or partition.closed:
                error = self._shell.why_closed(topic, number)
                self._without_key |= error is not None and not isinstance(error, Altered)
                behind.append(f"{topic.spec.name}-{number} ({_closed(error)})")
            elif partition not in self._in_sync:
                if partition.serving:  # a leader is in sync with itself
                    self._in_sync.add(partition)
                else:
                    doubtful.append(partition)
        for first in range(0, len(doubtful), READS_AT_ONCE):
            some = doubtful[first : first + READS_AT_ONCE]
            for partition, named in zip(some, await asyncio.gather(*map(self._named, some)), strict=True):
                if named:
                    self._in_sync.add(partition)
                else:
                    behind.append(partition.name)
        return behind

    async def _named(self, partition: Partition) -> bool:
        """Whether the partition's node names this replica's log in sync, and somebody leads it. What is known here may
        be what was so before this broker was away."""
        try:
            found = await self._shell.coordination.read_state(partition.topic.spec.topic_id, partition.number)
        except CoordinationUnavailable:
            return False
        if found is None or found[1].leader is None:
            return False
        logs = dict(found[1].isr)
        return logs.get(self._shell.broker) in ("", partition.replica.identity.log_id)


def _closed(error: SealedAway | None) -> str:
    if error is None:
        return "not open yet"
    return "closed: altered on its disk" if isinstance(error, Altered) else "closed: its key is missing or wrong"


class Systemd:
    """Tells systemd how this process does, if it was started by a unit of `Type=notify`. Owns whether it was told
    READY."""

    def __init__(self) -> None:
        path = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._is_told = False
        self._watchdog_s = int(os.environ.get("WATCHDOG_USEC", "0") or "0") / 2e6

    def tell(self, words: str) -> None:
        """E.g. `READY=1`. What does not get through is not tried again."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                to.setblocking(False)
                to.sendto(words.encode(), self._address)
        except OSError as error:
            log.debug("systemd was not told %s: %s", words, error)

    def look(self, readiness: Readiness) -> float:
        """READY once it is, and a sign of life; returns when the next is asked for. It runs on the loop: if that hangs
        there is no sign, and systemd starts the broker again."""
        if not self._address:
            return math.inf
        if readiness.ready.is_set() and not self._is_told:
            self._is_told = True
            self.tell("READY=1")
        if self._watchdog_s:
            self.tell("WATCHDOG=1")
        return min(self._watchdog_s or math.inf, 3600.0 if self._is_told else 0.2)
