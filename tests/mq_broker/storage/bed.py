"""What the storage tests share: entries, a listener that remembers, files that fail on demand, a bed to open journals
in.

The failing files fail in the way that the system does: they raise its `OSError`, having done as much as it may have
done.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import hashlib
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mq_broker.core.entries import (
    TTL_MS_MAX,
    Abort,
    Append,
    Attributes,
    Carry,
    Decide,
    DeleteGroup,
    Discard,
    Entry,
    EpochStart,
    Fence,
    Finish,
    Forget,
    Give,
    MoveCursor,
    Operation,
    Publish,
    Schedule,
    Stage,
    TransactionKey,
    Trim,
    Work,
)
from mq_broker.core.machine.machine import Change, PartitionMachine
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import OffsetsSkipped, Published, RecoveredLog, Trimmed
from mq_broker.core.work import steps
from mq_broker.storage.codec.frame import Place, encode
from mq_broker.storage.codec.snapshot import decode_snapshot
from mq_broker.storage.files import OsFiles
from mq_broker.storage.interface import Derived, Frame, Journal, OpenJournal
from mq_broker.storage.journal.journal import DiskJournal
from mq_broker.storage.journal.keeping import KeepingOfJournal
from mq_broker.storage.journal.memory import open_memory_journal
from mq_broker.storage.journal.segments import LogFiles
from mq_broker.storage.journal.shortening import Replay
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.key_provider import DEFAULT, DoesNotUnwrap, NoSuchKey
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.offset_index import OffsetIndex
from mq_broker.storage.opening.opening import Sealing, open_disk_journal
from mq_protocol.manifest import StagedPart
from mq_protocol.wire.envelope import Buffer

PLACE = Place("0c9a7e52", 3)
KEY = TransactionKey("query-7", "flights")
DEADLINE_S = 20.0
MARK_BYTES = 12


def uuid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def one_of_each_operation() -> list[Operation]:
    return [
        EpochStart(4, 7),
        Append(),
        Append(uuid_of(1) * 10),
        Stage(KEY, 12, "run-1"),
        Publish(KEY, 12, (uuid_of(1), uuid_of(2))),
        Discard(KEY, (uuid_of(3),)),
        MoveCursor("audit", 77, "spark"),
        Decide(KEY, 13, "run-2", 500, (StagedPart("flights", 2, (uuid_of(4),), 500), StagedPart("flights", 3, (), 0))),
        Finish(KEY, 13),
        Trim(5),
        Abort(KEY),
        Fence(KEY, (uuid_of(3), uuid_of(9))),
        Forget((KEY, TransactionKey("write:1", ""))),
        Decide(KEY, 2**62, "run-3", 0, (), once=True),
        MoveCursor("audit", 78, "consumer", forward=True),
        DeleteGroup("audit"),
        Work("jobs", 3, one_of_each_step()),
        Work("mail", 1, (steps.Begin(0), steps.Lease(((0, 3),), "w"), steps.Return(((1, 2),), True))),
        EpochStart(4, 7, 2),
        Schedule(1_700_000_000_000_000),
        Carry(),
    ]


def operations_with_attributes() -> list[Operation]:
    return [
        Append(b"", Attributes(9)),
        Append(uuid_of(1) * 10, Attributes(31)),
        Stage(KEY, 12, "run-1", Attributes(0)),
        Schedule(1_700_000_000_000_000, Attributes(5)),
        Append(b"", Attributes(ttl_ms=600_000)),
        Stage(KEY, 12, "run-1", Attributes(31, 1)),
        Schedule(1_700_000_000_000_000, Attributes(ttl_ms=TTL_MS_MAX)),
    ]


def operations_with_owners() -> list[Operation]:
    return [
        Stage(KEY, 12, "run-1", owner="User:etl"),
        Stage(KEY, 12, "run-1", Attributes(31, 1), "User:etl"),
        Decide(KEY, 13, "run-2", 500, (StagedPart("flights", 2, (uuid_of(4),), 500),), owner="User:etl"),
        MoveCursor("spark-1", 77, "spark", owner="User:etl"),
        Give(KEY, "User:etl-2"),
    ]


def one_of_each_step() -> tuple[steps.Step, ...]:
    lines = (steps.OutputLine("0c9a", 3, (uuid_of(5), uuid_of(6))), steps.OutputLine("0c9a", 4, ()))
    return (
        steps.Begin(0),
        steps.Begin(3, 1, ((5, 9), (20, 1 << 40))),
        steps.Lease(((0, 5000), (5001, 5003)), "worker-1"),
        steps.Accept(((0, 1), (2, 3), (4100, 4200))),
        steps.Return(((1, 2), (3, 9)), True, 1_700_000_000_000_000, "no bed"),
        steps.Return(((10, 20),)),
        steps.Reject(((20, 21),), "not JSON"),
        steps.Drop(((3, 4), (5100, 5200)), steps.Reason.EXPIRED),
        steps.Send(((20, 21),), steps.Reason.REJECTED, 3 << 32, lines),
        steps.Send(((30, 40),), steps.Reason.OUTPUT, (3 << 32) + 1, lines, "worker-1", 7),
        steps.Sent(3 << 32),
        steps.Park(((1, 2),)),
        steps.Reset(((1, 2),)),
        steps.End(),
    )


def frame_of(
    index: int, epoch: int = 1, payload: bytes = b"", operation: Operation | None = None, place: Place = PLACE
) -> Frame:
    """An entry's frame; an APPEND unless told otherwise."""
    operation = operation or Append()
    records = len(operation.uuids()) if isinstance(operation, Append) and operation.record_uuids else 1
    entry = Entry(index, epoch, 1_000_000 + index, operation, uuid_of(index), records, len(payload), 2 * len(payload))
    return encode(place, entry, (payload,) if payload else ())


def frames_of(first: int, last: int, epoch: int = 1, size: int = 40) -> list[Frame]:
    return [frame_of(index, epoch, bytes([index % 251]) * size) for index in range(first, last + 1)]


def random_frame(rng: random.Random, index: int, epoch: int) -> Frame:
    return frame_of(index, epoch, rng.randbytes(rng.choice([0, 1, 30, 400, 3000])), rng.choice(one_of_each_operation()))


def joined(frames: Sequence[Frame]) -> bytes:
    return b"".join(bytes(part) for frame in frames for part in frame.parts)


@dataclass
class Heard:
    """A listener that remembers, in order, and can be waited for."""

    calls: list[tuple[str, int | str, int | str]] = field(default_factory=list)
    log_id: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    waited_for: int = 0  # of the calls: the last wait for a flush ended with the one before

    def flushed(self, index: int, leader_epoch: int) -> None:
        self._note("flushed", index, leader_epoch)

    def refused(self, first_index: int, reason: str) -> None:
        self._note("refused", first_index, reason)

    def replaced(self, log_id: str, reason: str) -> None:
        self._note("replaced", log_id, reason)

    def altered(self, reason: str) -> None:
        self._note("altered", reason, "")

    def _note(self, what: str, first: int | str, second: int | str) -> None:
        self.calls.append((what, first, second))
        self.changed.set()

    def of(self, what: str) -> list[int | str]:
        return [first for name, first, _ in self.calls if name == what]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until_flushed(self, index: int) -> None:
        """Told of since the last such wait ended: an entry that was cut meanwhile may have been flushed under the same
        index."""

        def told() -> bool:
            return any(call[:2] == ("flushed", index) for call in self.calls[self.waited_for :])

        await self.until(told)
        self.waited_for += [call[:2] for call in self.calls[self.waited_for :]].index(("flushed", index)) + 1

    async def until_heard(self, what: str) -> None:
        await self.until(lambda: bool(self.of(what)))


class TrickFiles(OsFiles):
    """Real files with counters, and faults to switch on. `hold` cleared: the writer waits before its next write."""

    def __init__(self) -> None:
        self.writes = 0
        self.syncs = 0
        self.directory_syncs = 0
        self.room: int | None = None  # bytes that the disk still takes
        self.failing_syncs = 0
        self.failing_replaces = 0
        self.failing_truncates = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.waiting = threading.Event()
        self.sync_on = threading.Event()  # cleared: a background sync waits, once it has begun
        self.sync_on.set()
        self.syncing = threading.Event()
        self.one_at_a_time = False  # each `go_on.set()` lets one write pass
        self.events: list[str] = []

    def write(self, fd: int, parts: Sequence[Buffer], position: int) -> int:
        size = sum(memoryview(part).nbytes for part in parts)
        if size == MARK_BYTES:  # the flushed mark, in place: it needs no room
            self.events.append("mark")
            return super().write(fd, parts, position)
        self.waiting.set()
        assert self.go_on.wait(DEADLINE_S)
        self.waiting.clear()
        if self.one_at_a_time:
            self.go_on.clear()
        self.writes += 1
        self.events.append("write")
        if self.room is not None and size > self.room:
            if self.room == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            taken = super().write(fd, (b"".join(parts)[: self.room],), position)
            self.room -= taken
            return taken
        if self.room is not None:
            self.room -= size
        return super().write(fd, parts, position)

    def sync(self, fd: int) -> None:
        self.events.append("sync")
        self.syncs += 1
        if threading.current_thread().name == "journal-syncs":
            self.syncing.set()
            assert self.sync_on.wait(DEADLINE_S)
            self.syncing.clear()
        if self.failing_syncs:
            self.failing_syncs -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self.events.append("truncate")
        if self.failing_truncates:
            self.failing_truncates -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(fd, size)

    def sync_directory(self, path: Path) -> None:
        self.events.append("sync_directory")
        self.directory_syncs += 1
        super().sync_directory(path)

    def replace(self, path: Path, data: bytes) -> None:
        self.events.append("replace")
        if self.failing_replaces:
            self.failing_replaces -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().replace(path, data)


class Keys:
    """A key provider in memory, that can be away. Its keys are of one name or another, `name-1`, `name-2` and so on."""

    def __init__(self) -> None:
        self.newest = {DEFAULT: 1}
        self.gone: set[str] = set()
        self.away = False
        self.at_hand = True
        self.salt = ""
        self.asked = 0

    def current(self, name: str) -> str:
        self._ask()
        if name not in self.newest:
            raise NoSuchKey(f"no key called {name}")
        return f"{name}-{self.newest[name]}"

    def wrap(self, key_id: str, data_key: bytes, context: bytes) -> bytes:
        self._ask(key_id)
        return b"n" * 12 + AESGCM(self._key(key_id)).encrypt(b"n" * 12, data_key, context)

    def unwrap(self, key_id: str, wrapped: bytes, context: bytes) -> bytes:
        self._ask(key_id)
        try:
            return AESGCM(self._key(key_id)).decrypt(wrapped[:12], wrapped[12:], context)
        except InvalidTag as error:
            raise DoesNotUnwrap("no") from error

    def _ask(self, key_id: str = "") -> None:
        self.asked += 1
        if self.away:
            raise ConnectionError("the key service does not answer")
        if key_id in self.gone:
            raise NoSuchKey(f"no key {key_id}")

    def _key(self, key_id: str) -> bytes:
        return hashlib.sha256((self.salt + key_id).encode()).digest()


checkpointed_by_default: contextvars.ContextVar[bool] = contextvars.ContextVar("checkpointed_by_default", default=False)
"""Whether a checkpoint of half of what is flushed is there when a bed crashes or a journal is opened again."""

sealed_by_default: contextvars.ContextVar[bool] = contextvars.ContextVar("sealed_by_default", default=False)
"""Whether beds seal what they write, if they are told nothing."""


class Bed:
    """Where a test opens journals: a directory, a writer, and a clean end whatever happens. Use as `async with`."""

    def __init__(self, path: Path, durability: str = "fsync", **settings: int) -> None:
        self.path = path / "log"
        self.durability = durability
        self.settings = settings
        self.files = TrickFiles()
        self.boot = "boot-1"
        self.provider = Keys()
        self.keys = Keyring("test:", self.provider) if sealed_by_default.get() else None

    async def __aenter__(self) -> Bed:
        self.writer = Writer(self.files, sync_interval_s=0.02)
        self.writer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.files.go_on.set()
        self.files.sync_on.set()
        await self.writer.stop()

    def open(self, durability: str | None = None) -> tuple[Journal, Heard, OpenJournal]:
        durability = durability or self.durability
        if durability == "memory":
            heard = Heard()
            opened = open_memory_journal(heard, PLACE)
        else:
            heard, opened = self._open_on_disk(durability)
            if opened.recovered.checkpoint is not None and checkpointed_by_default.get():
                heard, opened = self._scrubbed(heard, opened, durability)
        return opened.journal, heard, opened

    def _open_on_disk(self, durability: str) -> tuple[Heard, OpenJournal]:
        heard = Heard()
        opened = open_disk_journal(
            self.path,
            PLACE,
            durability,
            heard,
            self.writer,
            boot=self.boot,
            topic="flights",
            sealing=Sealing(self.keys) if self.keys is not None else None,
            **self.settings,  # type: ignore[arg-type]
        )
        return heard, opened

    def _scrubbed(self, heard: Heard, opened: OpenJournal, durability: str) -> tuple[Heard, OpenJournal]:
        """What opening did not read is read at once. If it is bad, what a broker does then is done."""
        journal: DiskJournal = opened.journal  # type: ignore[assignment]
        log_id = journal.log_id

        def scrub() -> None:
            while asyncio.run(journal.keeping.scrub(500)):
                pass

        thread = threading.Thread(target=scrub)
        thread.start()
        thread.join()
        if not journal.keeping._over:
            checkpoint = opened.recovered.checkpoint
            assert checkpoint is not None
            frames = journal.read(journal.first_index, checkpoint.snapshot.last_index, 1 << 40)
            entries = (*(frame.entry for frame in frames), *opened.recovered.entries)
            return heard, opened._replace(recovered=RecoveredLog(entries, opened.recovered.snapshot))
        deadline = time.monotonic() + DEADLINE_S
        while json.loads((self.path / "log.json").read_text())["log_id"] == log_id:
            assert time.monotonic() < deadline, "no new log id"
            time.sleep(0.001)
        self._abandon(journal)
        return self._open_on_disk(durability)

    async def keep(self, journal: Journal, last_index: int = 0) -> bool:
        """A checkpoint of the entries up to that one; of half of what the disk has, if none is given."""
        files: LogFiles = journal._files  # type: ignore[attr-defined]
        last_index = last_index or (journal.first_index + files.synced) // 2
        assert journal.keeping is not None
        return await journal.keeping.keep(derived_of(journal, last_index))

    def _abandon(self, journal: Journal) -> None:
        files: LogFiles = journal._files  # type: ignore[attr-defined]
        files.closed = True
        for name in ("_fd", "_mark_fd"):
            if getattr(files, name) >= 0:
                os.close(getattr(files, name))
                setattr(files, name, -1)
        journal._close_reader()  # type: ignore[attr-defined]

    def hold(self) -> None:
        """From its next write on the writer waits: its thread, as the loop would wait with it."""
        self.writer._on_loop = False
        self.files.go_on.clear()

    async def append_and_hold_sync(self, journal: Journal, frames: list[Frame]) -> None:
        """Their background sync has begun, and waits."""
        self.files.sync_on.clear()
        journal.append(frames)
        assert await asyncio.to_thread(self.files.syncing.wait, DEADLINE_S)

    async def until_waiting_for_sync(self, journal: Journal) -> None:
        """The writer waits for the background sync of this journal, which waits as well."""
        files: LogFiles = journal._files  # type: ignore[attr-defined]
        await eventually(lambda: files._apart is None)
        assert self.files.syncing.is_set()

    def let_go(self) -> None:
        self.files.sync_on.set()
        self.files.one_at_a_time = False
        self.files.go_on.set()
        self.writer._on_loop = True

    async def crash(self, journal: Journal) -> None:
        """What kill -9 leaves: the files as they are, nobody to write them any more. Another writer for the next
        life."""
        keeping: KeepingOfJournal | None = journal.keeping  # type: ignore[assignment]
        if checkpointed_by_default.get() and keeping and not keeping._over and not isinstance(self.files, MortalFiles):
            await self.keep(journal)
        files: LogFiles = journal._files  # type: ignore[attr-defined]
        files.closed = True
        await self.writer.stop()
        self._abandon(journal)
        await self.__aenter__()

    @property
    def segments(self) -> list[Path]:
        return sorted(self.path.glob("*.log"))


async def eventually(condition: Callable[[], bool]) -> None:
    """For what no event tells."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.001)


def on_a_bed(
    test: Callable[[Bed], Coroutine[object, object, None]], path: Path, durability: str = "fsync", **settings: int
) -> None:
    """Run a test on an event loop of its own."""

    async def scene() -> None:
        async with Bed(path, durability, **settings) as bed:
            await test(bed)

    asyncio.run(scene())


def open_files_under(path: Path) -> list[str]:
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # Another thread of this process has closed it since.
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in names if name.startswith(os.path.realpath(path))]


class Killed(BaseException):
    """The process ends here, as far as the files can tell."""


class MortalFiles(TrickFiles):
    """Files of a process that dies before the change after `steps_left` others: what was done by then stays, nothing
    follows."""

    def __init__(self, steps_left: int = 1 << 30) -> None:
        super().__init__()
        self.steps_left = steps_left

    def _step(self) -> None:
        if self.steps_left <= 0:
            raise Killed
        self.steps_left -= 1

    def write(self, fd: int, parts: Sequence[Buffer], position: int) -> int:
        self._step()
        return super().write(fd, parts, position)

    def sync(self, fd: int) -> None:
        self._step()
        super().sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self._step()
        super().truncate(fd, size)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def move(self, source: Path, target: Path) -> None:
        self._step()
        super().move(source, target)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)

    def replace(self, path: Path, data: bytes) -> None:
        self._step()
        super().replace(path, data)


def state_of(frames: Sequence[Frame], window: WindowBounds) -> MachineState:
    """What these entries, from the first one on, come to."""
    machine = PartitionMachine(window)
    for frame in frames:
        machine.apply(frame.entry)
    return machine.state()


def derived_of(journal: Journal, last_index: int, window: WindowBounds | None = None) -> Derived:
    """What a broker would have made of the entries up to that one."""
    before = snapshot_of(journal)
    replay = Replay(before, window or WindowBounds(1 << 30))
    index = OffsetIndex(None, 0, before.state.next_offset if before is not None else 0)
    frames = journal.read(journal.first_index, last_index, 1 << 40) if last_index >= journal.first_index else []
    for frame in frames:
        for change in replay.take(frame.entry):
            index_change(index, change)
    [frozen] = index.freezing()
    assert frozen is not None
    return Derived(replay.snapshot(), frozen)


def index_change(index: OffsetIndex, change: Change) -> None:
    match change:
        case Published():
            index.append(change)
        case Trimmed(log_start_offset):
            index.trim(log_start_offset)
        case OffsetsSkipped(first, next_offset):
            index.skip(first, next_offset)


def snapshot_of(journal: Journal) -> Snapshot | None:
    """What stands for the entries before the journal's first."""
    return decode_snapshot(PLACE, journal.snapshot_data) if journal.snapshot_data else None


class Saved:
    """A log's directory as it is now, to be put back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = path.with_name("saved")
        shutil.copytree(self._path, self._copy)

    def put_back(self) -> None:
        shutil.rmtree(self._path)
        shutil.copytree(self._copy, self._path)
