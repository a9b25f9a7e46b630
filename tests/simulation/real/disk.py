"""One machine's disk: real files in a directory of its own, and what of them a loss of power would take away.

The product's storage writes through `Files` (mq_broker/storage/files.py) and through paths. Both are given here: `Disk`
is the one, `DiskPath` the other. Bytes are written to real files at once, and remembered until they are synced. So are
names, until their directory is synced. A process that is killed loses neither: the kernel has them. A machine that
loses its power loses the names from some point on. Of each file it loses any of the writes that were not synced; the
last one that stays may be torn.

The disk may be full, may be slow (that is the writer's, substitutes.py), and may fail to sync: what a failed sync was
to cover is never made durable by a later one, unless it was written or cut again in between.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PosixPath
from typing import Any

from tests.simulation.real.loop import PROCESS, Killed, Process, VirtualLoop

SECTOR = 512


@dataclass(slots=True)
class Write:
    """A change of a file's content that is not synced. `old` is what was there; None of `new`: the file was cut at
    `position`."""

    position: int
    old: bytes
    old_size: int
    new: bytes | None
    stuck: bool = False
    """A sync that was to cover it failed: no later one does."""


def _left(write: Write, later: Sequence[Write]) -> list[Write]:
    """What later changes, which are synced now, leave of this one. The rest is of no account any more."""
    end = write.old_size if write.new is None else write.position + len(write.new)
    left = [(write.position, end)]
    reached = write.old_size
    for change in (each for each in later if not each.stuck):
        first = change.position
        upto = end if change.new is None else first + len(change.new)
        left = [piece for a, b in left for piece in ((a, min(b, first)), (max(a, upto), b)) if piece[0] < piece[1]]
        reached = max(reached, first if change.new is None else upto)
    at = write.position
    return [
        Write(
            a,
            write.old[a - at : b - at],
            reached,
            None if write.new is None else write.new[a - at : b - at],
            stuck=True,
        )
        for a, b in left
    ]


@dataclass(slots=True)
class Name:
    """A change of names that is not synced. `undo` makes it unmade."""

    what: str
    directories: set[str]
    source: Path
    target: Path | None = None
    grave: Path | None = None
    """Where that is which had the name before."""


@dataclass(slots=True)
class _Open:
    path: Path
    inode: int
    process: Process | None = field(default=None)


class Disk:
    """Owns the files of one machine. Is the product's `Files`."""

    def __init__(self, root: Path, graves: Path, loop: VirtualLoop, faults: Counter[str]) -> None:
        """`root`: the broker's directory. `graves`: where what is removed is kept until that is durable."""
        self.root, self.graves = root, graves
        for directory in (root, graves):
            directory.mkdir(parents=True, exist_ok=True)
        self.boot = 1
        self.latency_s = (0.0001, 0.005)
        """How long the writer's thread takes to come to a round, or to tell of one."""
        self.sync_fails = 0.0
        self.read_fails = 0.0
        self.full = False
        self.lied = False
        """It once failed to sync or to read: only then may what was flushed be gone."""
        self.spoiled: set[str] = set()
        """Directories in which it was damaged while nobody looked."""
        self.ops = 0
        self.kill_at = 0
        """The process is killed before this operation."""
        self.on_kill: Any = None
        self._loop = loop
        self._faults = faults
        self._open: dict[int, _Open] = {}
        self._writes: dict[int, list[Write]] = {}
        self._names: list[Name] = []
        self._graves = 0
        self._durable_sizes: dict[int, int] = {}

    @property
    def path(self) -> DiskPath:
        return DiskPath(self.root)

    # ------------------------------------------------------------------ every operation

    def step(self) -> None:
        """Before each change: the process may be dead, or die here."""
        process = PROCESS.get()
        if process is not None and not process.alive:
            raise Killed
        self.ops += 1
        if self.kill_at and self.ops >= self.kill_at and process is not None:
            self.kill_at = 0
            self._faults["killed in the middle of a disk operation"] += 1
            self.on_kill()
            raise Killed

    def _full(self) -> None:
        if self.full:
            self._faults["disk full"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # ------------------------------------------------------------------ descriptors

    def open(self, path: Path) -> int:
        self.step()
        made = not os.path.exists(path)
        if made:
            self._full()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if made:
            self._names.append(Name("made", {str(path.parent)}, path))
        return self.opened(fd, path)

    def opened(self, fd: int, path: Path) -> int:
        """A descriptor that was had otherwise: it is closed with the process."""
        self._open[fd] = _Open(path, os.fstat(fd).st_ino, PROCESS.get())
        return fd

    def close(self, fd: int) -> None:
        process = PROCESS.get()
        if process is not None and not process.alive:
            raise Killed
        if self._open.pop(fd, None) is None:
            raise OSError(errno.EBADF, "closed already")
        os.close(fd)

    def close_all_of(self, process: Process) -> None:
        for fd in [fd for fd, opened in self._open.items() if opened.process is process]:
            del self._open[fd]
            os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, size: int, position: int) -> bytes:
        if self._loop.chance(self.read_fails):
            self._faults["disk cannot read"] += 1
            self.lied = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(fd, size, position)

    def read_into(self, fd: int, room: memoryview, position: int) -> int:
        data = self.read(fd, len(room), position)
        room[: len(data)] = data
        return len(data)

    def write(self, fd: int, parts: Sequence[Any], position: int) -> int:
        self.step()
        data = b"".join(parts)
        short = None
        if self.full or (len(data) > 100 and self._loop.chance(0.02)):
            short = self._loop.random.randrange(len(data))  # a write may take less than it is given
            if short == 0 or (self.full and self._loop.chance(0.5)):
                self._full()
                short = None
        if short is not None:
            data = data[:short]
        size = os.fstat(fd).st_size
        old = os.pread(fd, len(data), position) if position < size else b""
        self._writes.setdefault(self._inode(fd), []).append(Write(position, old, size, data))
        os.pwrite(fd, data, position)
        return len(data)

    def truncate(self, fd: int, size: int) -> None:
        self.step()
        now = os.fstat(fd).st_size
        old = os.pread(fd, now - size, size) if now > size else b""
        self._writes.setdefault(self._inode(fd), []).append(Write(size, old, now, None))
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        self.step()
        self._sync_inode(self._inode(fd))

    def _sync_inode(self, inode: int) -> None:
        writes = self._writes.get(inode, [])
        if self._loop.chance(self.sync_fails):
            self._faults["sync failed"] += 1
            self.lied = True
            for write in writes:
                write.stuck = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        stuck = [
            left for number, write in enumerate(writes) if write.stuck for left in _left(write, writes[number + 1 :])
        ]
        if stuck:
            self._writes[inode] = stuck
        else:
            self._writes.pop(inode, None)

    def _inode(self, fd: int) -> int:
        return self._open[fd].inode

    def unsynced(self, path: str | Path, first: int, end: int) -> str:
        """Which change of these bytes a loss of power may take away; empty if none."""
        for write in self._writes.get(os.stat(path).st_ino, ()):
            upto = write.old_size if write.new is None else write.position + len(write.new)
            if write.position < end and first < upto:
                what = "a write of" if write.new is not None else "the cutting of"
                return f"{what} bytes {write.position} to {upto} of {os.path.basename(path)} is not synced"
        return ""

    # ------------------------------------------------------------------ names

    def remove(self, path: Path) -> None:
        self.step()
        if not os.path.lexists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._names.append(Name("removed", {str(path.parent)}, path, grave=self._bury(path)))

    def remove_tree(self, path: Path) -> None:
        self.remove(path)

    def move(self, source: Path, target: Path) -> None:
        self.step()
        grave = self._bury(target) if os.path.lexists(target) else None
        os.rename(source, target)
        self._names.append(Name("moved", {str(source.parent), str(target.parent)}, source, target, grave))

    def make_directory(self, path: Path) -> None:
        self.step()
        self._full()
        os.mkdir(path, 0o750)
        self._names.append(Name("made", {str(path.parent)}, path))

    def sync_directory(self, path: Path) -> None:
        self.step()
        if not os.path.isdir(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if self._loop.chance(self.sync_fails):
            self._faults["sync failed"] += 1
            self.lied = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        for name in self._names:
            name.directories.discard(str(path))
        self._names = [name for name in self._names if name.directories]

    def replace(self, path: Path, data: bytes) -> None:
        new = path.with_name(path.name + ".new")
        if os.path.lexists(new):
            self.remove(new)
        fd = self.open(new)
        try:
            at = 0
            while at < len(data):
                at += self.write(fd, (data[at:],), at)
            self.sync(fd)
        finally:
            self.close(fd)
        self.move(new, path)
        self.sync_directory(path.parent)

    def _bury(self, path: Path) -> Path:
        self._graves += 1
        grave = self.graves / str(self._graves)
        os.rename(path, grave)
        return grave

    # ------------------------------------------------------------------ the power fails

    def lose_power(self) -> None:
        """All processes are dead. What is not synced may be gone, and the machine boots."""
        self.boot += 1
        self._faults["power lost"] += 1
        keep = self._loop.random.randrange(len(self._names) + 1)
        files = {inode: writes for inode, writes in self._writes.items() if writes}
        found = {os.stat(path).st_ino: path for path in self._all_files()}
        for inode in sorted(files):
            if inode in found:
                self._lose_writes(found[inode], files[inode])
        while len(self._names) > keep:
            self._unmake(self._names.pop())
        self._names.clear()
        self._writes.clear()

    def _all_files(self) -> list[str]:
        return [
            os.path.join(top, name)
            for base in (self.root, self.graves)
            for top, _, names in os.walk(base)
            for name in names
        ]

    def _lose_writes(self, path: str, writes: list[Write]) -> None:
        random = self._loop.random
        with open(path, "r+b") as file:
            for write in reversed(writes):
                if write.new is None:
                    file.seek(write.position)
                    file.write(write.old)
                else:
                    file.seek(write.position)
                    file.write(write.old)
                file.truncate(write.old_size)
            fate = random.random()
            if fate < 0.3:
                survivors: list[Write] = []  # nothing had been written back
            elif fate < 0.8:
                survivors = writes[: random.randrange(len(writes) + 1)]
            else:
                survivors = [write for write in writes if random.random() < 0.5]
            torn = survivors and random.random() < 0.5
            for write in survivors:
                if write.new is None:
                    file.truncate(write.position)
                    continue
                data = write.new
                if torn and write is survivors[-1] and len(data) > 12:
                    self._faults["torn write"] += 1
                    data = data[: random.randrange(len(data))]
                file.seek(write.position)
                file.write(data)
            if len(survivors) < len(writes):
                self._faults["unsynced writes lost"] += 1

    def _unmake(self, name: Name) -> None:
        self._faults["unsynced name lost"] += 1
        if name.what == "made":
            self._bury(name.source)
        elif name.what == "removed":
            assert name.grave is not None
            os.rename(name.grave, name.source)
        else:
            assert name.target is not None
            os.rename(name.target, name.source)
            if name.grave is not None:
                os.rename(name.grave, name.target)

    def lose(self, path: str) -> None:
        """That directory is gone for good, its name too. Its process is dead."""
        self._names = [
            name
            for name in self._names
            if not any(str(each).startswith(path) for each in (name.source, name.target) if each is not None)
        ]
        if os.path.lexists(path):
            self._bury(Path(path))

    def erase(self) -> None:
        """Somebody put an empty disk in its place."""
        self._bury(self.root)
        self.root.mkdir()
        self._names.clear()
        self._writes.clear()


def this_disk() -> Disk:
    """That of the process whose code runs. Is what the product is given in place of `OsFiles()`."""
    process = PROCESS.get()
    assert process is not None, "no process runs"
    assert process.disk is not None, f"{process} has no disk"
    return process.disk


class DiskPath(PosixPath):
    """A path on the disk of the process that uses it: what changes names goes through the disk."""

    __slots__ = ()

    @property
    def _disk(self) -> Disk:
        return this_disk()

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if os.path.isdir(self):
            if not exist_ok:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self))
            return
        if parents:
            self.parent.mkdir(mode, parents=True, exist_ok=True)
        self._disk.make_directory(self)

    def unlink(self, missing_ok: bool = False) -> None:
        if missing_ok and not os.path.lexists(self):
            return
        self._disk.remove(self)

    def rename(self, target: Any) -> DiskPath:
        self._disk.move(self, target)
        return DiskPath(target)

    def replace(self, target: Any) -> DiskPath:
        return self.rename(target)

    def write_text(self, data: str, *_: Any, **__: Any) -> int:
        """Unsynced: broker.pid alone is written so, and nothing reads it."""
        self._disk.step()
        return super().write_text(data)


class StorageOs:
    """What `os` is to the modules of the product's storage: descriptors die with their process, and paths are on its
    disk."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        process = PROCESS.get()
        if process is None or process.disk is None:
            return os.open(path, flags, mode)
        if not process.alive:
            raise Killed
        return process.disk.opened(os.open(path, flags, mode), Path(path))

    def close(self, fd: int) -> None:
        process = PROCESS.get()
        if process is None or process.disk is None:
            os.close(fd)
        else:
            process.disk.close(fd)


class StorageShutil:
    """As `StorageOs`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(shutil, name)

    def rmtree(self, path: Any) -> None:
        this_disk().remove_tree(Path(path))
