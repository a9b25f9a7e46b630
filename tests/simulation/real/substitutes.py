"""What the product's modules are given in place of the world: time, chance, sockets, threads, the kernel.

`in_place_of` puts each substitute wherever a module of the product holds the original, whatever it calls it there. So a
module that is moved, or that begins to use the clock, is simulated without a word here; and a module that uses
something of the world that is not simulated finds nothing by that name in the substitute, and fails loudly.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from mq_broker.broker import server
from mq_broker.broker.data import scheduled
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.queues import idle
from mq_broker.broker.queues.group import led_group
from mq_broker.broker.queues.group.led_group import LedGroup
from mq_broker.broker.queues.idle import Idle
from mq_broker.broker.queues.letters.outbox import Outbox
from mq_broker.broker.queues.policy import batch_expiries, expiring
from mq_broker.core.messages import Effect, Event
from mq_broker.core.replication.replica import Replica
from mq_broker.core.work import state as work_state
from mq_broker.rpc.wire import accepting, framed, streams
from mq_broker.storage.files import OsFiles
from mq_broker.storage.identity import boot_id
from mq_broker.storage.interface import OpenJournal
from mq_broker.storage.journal import keeping
from mq_broker.storage.journal.background_syncs import BackgroundSyncs
from mq_broker.storage.journal.recovery import LogDamaged
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol import limits, names
from mq_protocol.addresses import is_loopback
from mq_protocol.errors import StagedBatchMissing
from mq_protocol.queues import settings as queue_settings
from mq_protocol.wire import connection, framing
from tests.often import look_every
from tests.simulation.real.disk import StorageOs, StorageShutil, this_disk
from tests.simulation.real.idling import WatchedIdle
from tests.simulation.real.loop import PROCESS, Killed, VirtualLoop
from tests.simulation.real.wires import Network

OFFSETS_OF_A_LIFE = 1 << 14
"""More than a partition is given between two recoveries; few enough to be looked at one by one."""

NARROW: dict[Any, dict[str, int]] = {
    connection: {"UNREAD_BYTES": 1_000, "WRITE_BUFFER_BYTES": 500},
    streams: {"UNREAD_BYTES": 500},
    framed: {"WRITE_BUFFER_BYTES": 500},
    framing: {"GATHER_BYTES": 400, "LARGE_BYTES": 200},
}
"""Of what is on its way and not read: a few messages. What is large has memory of its own."""

EPOCH_S = 1_700_000_000
"""What the wall clocks say when a simulation begins."""


class Clock:
    """What `time` is to the product."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time() + 1000.0

    def monotonic_ns(self) -> int:
        return int(self.monotonic() * 1e9)

    def clock_gettime(self, clock: int) -> float:
        return self.monotonic()

    def perf_counter(self) -> float:
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        """Of a thread that leaves the processor to others: its job takes some time anyway."""

    def time(self) -> float:
        process = PROCESS.get()
        return EPOCH_S + self._loop.time() + (process.clock_ahead_s if process is not None else 0.0)

    def time_ns(self) -> int:
        return int(self.time() * 1e9)


class Uuids:
    """What `uuid` is to the product."""

    UUID = uuid.UUID

    def __init__(self, loop: VirtualLoop) -> None:
        self._random = loop.random

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)


class Secrets:
    """What `secrets` is to the product."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._random = loop.random

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


# ---------------------------------------------------------------------- the writer's threads


class _Sync(Future[None]):
    """A sync that another thread makes. Whoever cannot wait has it made at once."""

    def __init__(self, files: Any, fd: int) -> None:
        super().__init__()
        self._files = files
        self._fd = fd

    def make(self) -> None:
        if self.done():
            return
        try:
            self._files.sync(self._fd)
        except OSError as error:
            self.set_exception(error)
        else:
            self.set_result(None)

    def result(self, timeout: float | None = None) -> None:
        self.make()
        super().result(0)


class SimulatedSyncs(BackgroundSyncs):
    """Its thread is a timer."""

    kick: Callable[[], None]
    later: Callable[..., object]

    def _ask(self, fd: int) -> Future[None]:
        sync = _Sync(self._files, fd)

        def made() -> None:
            try:
                sync.make()
            except Killed:
                return
            self._wake()
            self.kick()

        self.later(made)
        return sync


class SimulatedWriter(Writer):
    """Its thread is a timer for each round. A round begins some time after what it carries out was asked for. It is
    told of some time after it is done."""

    syncs: SimulatedSyncs

    def __init__(self) -> None:
        self._disk = this_disk()
        super().__init__(self._disk, on_loop=False)  # type: ignore[arg-type]
        self.syncs.kick = self._kick
        self.syncs.later = lambda made: self.loop.call_later(self._pause() * 3, made)
        self._due = False
        self._delivered_at = 0.0

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        self._queue.put(None)
        self._kick()
        await self.died

    def submit(self, *args: Any, **named: Any) -> None:
        super().submit(*args, **named)
        self._kick()

    def _pause(self) -> float:
        loop: Any = self.loop
        return loop.often_short(*self._disk.latency_s)

    def _kick(self) -> None:
        if not self._due:
            self._due = True
            self.loop.call_later(self._pause(), self._work)

    def _work(self) -> None:
        self._due = False
        stopping = False
        try:
            if not self._queue.empty() or self.syncs.wait_s == 0.0:
                stopping = self._round()
        except Killed:
            return
        except Exception as error:  # noqa: BLE001 - as the product's writer does
            self._post(self._ended, error)
            return
        if stopping:
            self._post(self._ended, None)
        elif not self._queue.empty():
            self._kick()
        elif self.syncs.wait_s is not None:
            self.loop.call_later(self.syncs.wait_s + 1e-4, self._kick)

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        self._delivered_at = max(self._delivered_at, self.loop.time() + self._pause())
        self.loop.call_at(self._delivered_at, callback, *args)


def boot_of_this_machine() -> str:
    return f"boot {this_disk().boot}"


class KnownShell(server.Shell):
    """The shell, known to the oracle."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        process = PROCESS.get()
        assert process is not None
        process.shell = self
        self._linked: set[int] = set()

    def link_up(self, broker: int) -> None:
        self._told(broker, broker not in self._linked, "up")
        self._linked.add(broker)
        super().link_up(broker)

    def link_down(self, broker: int) -> None:
        self._told(broker, broker in self._linked, "down")
        self._linked.discard(broker)
        super().link_down(broker)

    @staticmethod
    def _told(broker: int, expected: bool, what: str) -> None:
        """By these words it counts what was dropped on the way, and who is there: they come in turn."""
        process = PROCESS.get()
        assert process is not None
        if not expected:
            process.oracle.cluster.fail(f"{process} is told twice that the link to broker {broker} is {what}")

    async def _open_journal(self, *args: Any) -> tuple[OpenJournal, OffsetIndex]:
        found, index = await super()._open_journal(*args)
        process = PROCESS.get()
        assert process is not None
        if found.recovered.checkpoint is not None:
            process.oracle.cluster.faults["gone on from a checkpoint"] += 1
        return found, index

    async def _delete(self, partition: Partition) -> None:
        process = PROCESS.get()
        assert process is not None
        process.oracle.deletes(process, partition)
        await super()._delete(partition)


class WatchedDamage(LogDamaged):
    """Damage that was found. A disk that never failed to sync or to read damages nothing that was flushed."""

    def __init__(self, path: Path, segment: int, position: int, last_index: int, reason: str) -> None:
        super().__init__(path, segment, position, last_index, reason)
        process = PROCESS.get()
        assert process is not None
        disk = this_disk()
        if not disk.lied and not any(str(path).startswith(each) for each in disk.spoiled):
            process.oracle.cluster.fail(f"{process}: a log is damaged on a disk that never failed: {self}")


class WatchedReplica(Replica):
    """A replica whose steps the oracle sees."""

    def step(self, event: Event) -> list[Effect]:
        before = self.high_watermark
        effects = super().step(event)
        process = PROCESS.get()
        assert process is not None
        process.oracle.stepped(process, self, before, effects)
        return effects


class WatchedOutbox(Outbox):
    """Nothing discards what a queue group has decided, as long as the log in which it is staged is not lost."""

    async def _publish(self, group: Any, lane: Any, chosen: Any) -> None:
        try:
            await super()._publish(group, lane, chosen)
        except StagedBatchMissing as error:
            process = PROCESS.get()
            assert process is not None
            lost = process.oracle.recoveries.of_topic(lane.topic_id, lane.partition) >= 0
            # Of several, those that a former leader has published are not staged any more
            if len(chosen) == 1 and not lost:
                process.oracle.cluster.fail(f"{process}: what a queue group has decided is not staged: {error}")
            raise


class WatchedGathering(LedGroup):
    """With nothing on its way a leader's own view of a queue group is what is committed."""

    def _land(self) -> None:
        super()._land()
        partition, view = self.partition, self._state
        committed = partition.replica.machine.work.get(self.group)
        if self._flights or self._stopped or self.closed or view is None or committed is not self._committed:
            return
        view = view.copy()
        view.pass_to(partition.replica.machine.log_start_offset)
        if view.frozen() != committed.frozen():
            process = PROCESS.get()
            assert process is not None
            process.oracle.cluster.fail(f"{process} sees another state of {partition.name} ahead than is committed")


# ---------------------------------------------------------------------- putting them in place


Table: TypeAlias = list[tuple[Any, Any, str]]
"""Original, substitute, and below which package."""


def is_loopback_address(host: str) -> bool:
    """`is_loopback` without a resolver, which may take five seconds to say that it does not know a simulated host."""
    return host[:1].isdigit() and is_loopback(host)


def of_the_world(loop: VirtualLoop, network: Network) -> Table:
    """Time, chance, disks, threads and wires."""
    return [
        (time, Clock(loop), "mq_broker"),
        (uuid, Uuids(loop), "mq_broker"),
        (secrets, Secrets(loop), "mq_broker"),
        (random, loop.random, "mq_broker"),
        (os, StorageOs(), "mq_broker.storage"),
        (os, StorageOs(), "mq_broker.coordination"),
        (shutil, StorageShutil(), "mq_broker.storage"),
        (OsFiles, this_disk, "mq_broker"),
        (boot_id, boot_of_this_machine, "mq_broker"),
        (Writer, SimulatedWriter, "mq_broker"),
        (BackgroundSyncs, SimulatedSyncs, "mq_broker"),
        (accepting.bind, network.bind, "mq_broker"),
        (is_loopback, is_loopback_address, "mq_broker"),
    ]


def substitutes(loop: VirtualLoop, network: Network) -> Table:
    """The world, and what an oracle watches."""
    return [
        *of_the_world(loop, network),
        (LogDamaged, WatchedDamage, "mq_broker.storage"),
        (Replica, WatchedReplica, "mq_broker.broker"),
        (server.Shell, KnownShell, "mq_broker.broker.server"),
        (LedGroup, WatchedGathering, "mq_broker.broker.queues.working"),
        (Outbox, WatchedOutbox, "mq_broker.broker.server"),
        (Idle, WatchedIdle, "mq_broker.broker.server"),
    ]


@contextlib.contextmanager
def put_in_place(table: Table) -> Iterator[None]:
    """The product's modules have the substitutes until this ends."""
    by_id: dict[int, list[tuple[Any, str]]] = {}
    for original, substitute, below in table:
        by_id.setdefault(id(original), []).append((substitute, below))
    undo: list[tuple[Any, str, Any]] = []
    for module_name, module in sorted(sys.modules.items()):
        if not module_name.startswith("mq_broker"):
            continue
        for name, value in list(vars(module).items()):
            for substitute, below in by_id.get(id(value), ()):
                if module_name.startswith(below):
                    undo.append((module, name, value))
                    setattr(module, name, substitute)
    try:
        yield
    finally:
        for module, name, value in undo:
            setattr(module, name, value)


def _allowing(table: Mapping[str, names.Setting], name: str, values: names.Values[Any]) -> dict[str, names.Setting]:
    return {**table, name: replace(table[name], values=values)}


@contextlib.contextmanager
def in_place_of(table: Table, *, tight: bool = False, narrow: bool = False, sweep_s: float = 15.0) -> Iterator[None]:
    """The product's modules have the substitutes until this ends, and sizes and times that are soon reached. `tight`:
    with bounds that are reached, too; `narrow`: those of connections. `sweep_s`: so often what is staged and not
    decided is looked at."""
    undo: list[tuple[Any, str, Any]] = []
    undo.append((limits, "OFFSETS_OF_A_LIFE", limits.OFFSETS_OF_A_LIFE))
    undo += [(scheduled, name, getattr(scheduled, name)) for name in ("CARRY_ENTRIES", "CARRY_TIMES")]
    vars(scheduled).update(CARRY_ENTRIES=5, CARRY_TIMES=0)  # what holds a few entries back is carried
    undo += [(idle, name, getattr(idle, name)) for name in ("SLEPT_MS", "AGAIN_MS")]
    vars(idle).update(SLEPT_MS=1_000, AGAIN_MS=500)
    undo += [(keeping, name, getattr(keeping, name)) for name in ("CHECKPOINT_COST", "GROWTH", "WORTH_COST")]
    vars(keeping).update(CHECKPOINT_COST=12_000, GROWTH=0, WORTH_COST=1)  # of ten entries
    undo += [(names, "SETTINGS", names.SETTINGS), (queue_settings, "QUEUE_SETTINGS", queue_settings.QUEUE_SETTINGS)]
    # segments of a few entries, so that many are begun and dropped
    vars(names).update(SETTINGS=_allowing(names.SETTINGS, "segment_bytes_max", names.sizes(1_000)))
    vars(queue_settings).update(
        QUEUE_SETTINGS=_allowing(queue_settings.QUEUE_SETTINGS, "idle_ms", names.or_for_ever(names.times(1), 0))
    )
    if tight:
        undo += [(work_state, name, getattr(work_state, name)) for name in ("SPAN_MAX", "RUNS_MAX")]
        vars(work_state).update(SPAN_MAX=40, RUNS_MAX=8)
        undo.append((led_group, "IN_FLIGHT_MAX", led_group.IN_FLIGHT_MAX))
        vars(led_group).update(IN_FLIGHT_MAX=1)
        undo += [
            (batch_expiries, name, getattr(batch_expiries, name)) for name in ("_BLOCK", "BATCHES_MAX", "READ_AT_ONCE")
        ]
        vars(batch_expiries).update(_BLOCK=3, BATCHES_MAX=12, READ_AT_ONCE=4)
        undo.append((expiring, "FOUND_AT_ONCE", expiring.FOUND_AT_ONCE))
        vars(expiring).update(FOUND_AT_ONCE=1)
    if narrow:
        for module, sizes in NARROW.items():
            undo += [(module, name, getattr(module, name)) for name in sizes]
            vars(module).update(sizes)
    vars(limits).update(OFFSETS_OF_A_LIFE=OFFSETS_OF_A_LIFE)
    try:
        with put_in_place(table), pytest.MonkeyPatch.context() as patch:
            look_every(patch, leftovers_of_queue_groups=sweep_s, idle_queue_groups=0.2, checkpoints=0.2)
            yield
    finally:
        for module, name, value in undo:
            setattr(module, name, value)
