"""Whether this broker is to be sent work, and who is told: HTTP, gRPC's health service and systemd ask the same object.

A broker is ready once all that is assigned to it is open and in sync again: what stays closed is neither. So whoever
restarts brokers one after another, and waits for each to be ready, never takes a second replica away before the first
is back.
"""

from __future__ import annotations

import asyncio
import logging
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

LOOK_S: Final = 0.5
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

    async def watch(self) -> None:
        """Returns once it is ready. To be begun when the broker serves."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while True:
            self._behind = await self._look()
            if not self._behind:
                break
            if loop.time() >= deadline and not self._without_key:
                ALARMS.add("ready_without_sync")
                log.warning(
                    "this broker counts as ready although %d of its replicas are not in sync after %g s: %s",
                    len(self._behind),
                    self._timeout_s,
                    ", ".join(self._behind[:5]),
                )
                break
            await asyncio.sleep(LOOK_S)
        self.ready.set()
        log.info("ready%s", "" if self._behind else ": everything assigned to this broker is open and in sync")

    async def _look(self) -> list[str]:
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
    """Tells systemd how this process does, if it was started by a unit of `Type=notify`."""

    def __init__(self) -> None:
        path = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
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

    async def keep(self, readiness: Readiness) -> None:
        """READY once it is, then a sign of life as often as is asked for. Runs until cancelled. It runs on the loop: if
        that hangs there is no sign, and systemd starts the broker again."""
        if not self._address:
            return
        while not readiness.ready.is_set():
            await self._sign(0.2)
        self.tell("READY=1")
        while True:
            await self._sign(3600.0)

    async def _sign(self, otherwise_s: float) -> None:
        if self._watchdog_s:
            self.tell("WATCHDOG=1")
        await asyncio.sleep(min(self._watchdog_s or otherwise_s, otherwise_s))
