"""A broker's data directory: whose it is, that nobody else uses it, and where each partition lives in it.

    broker.json                          broker id and cluster id: a directory is never taken for another's; and a
                                         stamp, which tells an older copy of it
    broker.lock                          held (flock) while a process uses the directory; gone with the process, however
                                         it ends
    broker.pid                           the process id, for people and scripts; removed at a clean stop
    partitions/<topic id>-<partition>/   one journal (segments.py); its log.json also names the topic, for people

Topic ids, not names: a topic made again under the same name is another topic (trap 29).

**The stamp** grows when a broker has registered, while it runs, and at its clean stop: first in the directory, durably,
then in the coordination service. So a crash between the two never makes a directory look old, and one whose stamp is
below what is known there is an older copy of itself. Its logs may lack what they acknowledged: before anything else
each becomes another log, with all that it holds, and nobody counts on it before it has caught up. A service that was
put back to an older copy knows a lower stamp, which says nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from mq_broker.core.machine.state import Snapshot
from mq_broker.measured import ALARMS
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.files import Files, OsFiles
from mq_broker.storage.identity import boot_id
from mq_broker.storage.interface import JournalListener, OpenJournal
from mq_broker.storage.journal.memory import open_memory_journal
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.offset_index import FrozenIndex, OffsetIndex
from mq_broker.storage.opening.opening import Sealing, open_disk_journal
from mq_broker.storage.opening.quarantine import fresh_identity, install_snapshot, renew, start_over
from mq_broker.storage.sealed import KeyAbsent
from mq_protocol.errors import InvalidSetting, StorageFailed
from mq_protocol.limits import INCARNATION_MAX, JOURNAL_CACHE_BYTES_MAX, SEGMENT_BYTES_MAX, STAMP_MAX
from mq_protocol.names import quoted
from mq_protocol.unknown_keys import unknown_keys, with_unknown

_logger = logging.getLogger(__name__)

DURABILITIES: Final = ("fsync", "os", "memory")

FORMAT: Final = 1
"""Of the directory as a whole. A later one is to be named in `broker.json`, as `format`."""

_OWNER_KEYS: Final = ("broker", "cluster_id", "stamp", "incarnation")
_DELETED: Final = ".deleted"
_DISK_IS_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_UNKNOWN_BYTES_MAX: Final = 64 << 10
_PLAIN: Final = re.compile("[0-9A-Za-z_-]{1,128}")
"""A name without a separator or a dot, so a child of the directory that it is looked for in, and none that is being
deleted."""


class DataDirectory:
    """Owns the directory from `open` to `close`: the lock, `broker.json`, `broker.pid`. Journals are owned by who opens
    them.

    Threads that are still at work in it when it is closed keep the lock until they are done: a recovery that goes on
    would cut what the next process appends.
    """

    def __init__(self, path: Path, owner: _Owner, lock_fd: int, files: Files, keys: Keyring | None = None) -> None:
        broker, cluster_id = owner.broker, owner.cluster_id
        self._unknown, self._stamp, self._damage = owner.unknown, owner.stamp, owner.damage
        self.incarnation = owner.incarnation
        """The newest of a broker that has used it; whoever sets it has it on the disk with the next stamp."""

        self.path = path
        self.broker = broker
        self.cluster_id = cluster_id
        self._lock_fd = lock_fd
        self._holders = 1  # of the lock: who opened it, and the threads at work
        self._guard = threading.Lock()
        self._stamping = threading.Lock()
        self._files = files
        self._keys = keys
        self._boot = boot_id()

    @classmethod
    def open(cls, path: Path, broker: int, files: Files | None = None, keys: Keyring | None = None) -> DataDirectory:
        """Make or take up the directory of that broker. With `keys` whatever of payloads is written is sealed.

        Raises `InvalidSetting` if another process uses it or it belongs to another broker, `StorageFailed` if it cannot
        be used. A directory that was used before is opened on a full disk too. `cluster_id` is empty until
        `join_cluster` has been called once in the directory's life.
        """
        files = files or OsFiles()
        try:
            _make_private(path)
            lock_fd = _lock(path)
            try:
                directory = cls(path, _read_owner(path, broker), lock_fd, files, keys)
                if not (path / "broker.json").exists():
                    directory._write_owner()
                _write_pid(path / "broker.pid")
                for leftover in (path / "partitions").glob(f"*{_DELETED}"):
                    shutil.rmtree(leftover)
            except BaseException:
                os.close(lock_fd)
                raise
        except OSError as error:
            if error.errno in _DISK_IS_FULL:
                cure = "free some space on its disk, then start the broker again"
            else:
                cure = "give --data a directory that can be written"
            raise StorageFailed(f"data directory {path} cannot be used ({error}): {cure}") from error
        return directory

    def join_cluster(self, cluster_id: str, stamp: int | None = None) -> None:
        """The first time, remember the cluster; from then on raise `InvalidSetting` for any other, before anything is
        touched.

        `stamp`: the last one of this broker's directory that is known to the cluster; None where nothing outside of the
        directory could know. In a directory that is behind, or does not know its stamp, every log becomes another one.
        Blocks: call it in a thread, before any journal is opened. Raises `StorageFailed` if the disk refuses, or
        `broker.json` is damaged and nothing else says what it said."""
        if self.cluster_id not in ("", cluster_id):
            raise InvalidSetting(
                f"data directory {self.path} belongs to cluster {self.cluster_id}, not {cluster_id}: check "
                "--zookeeper, or give --data an empty directory"
            )
        if self._damage and stamp is None:
            raise StorageFailed(
                f"{self._damage}. This broker stands alone, so nothing else says whose directory it is: if it is "
                f"broker {self.broker}'s, move that file away and start again; it is made anew, and no record is lost"
            )
        behind = stamp is not None and (self._stamp < stamp or bool(self._damage))
        try:
            if behind:
                self._renew_logs(stamp or 0)
                self._stamp = max(self._stamp, stamp or 0)
            if behind or not self.cluster_id:
                self.cluster_id = cluster_id
                self._write_owner()
        except OSError as error:
            raise StorageFailed(
                f"data directory {self.path} cannot be written ({error}): free some space there, or check that disk"
            ) from error

    def _renew_logs(self, known: int) -> None:
        """Every log becomes another one. Said if there is any."""
        renewed = 0
        for path in sorted((self.path / "partitions").iterdir()):
            topic_id, _, number = path.name.rpartition("-")
            if _PLAIN.fullmatch(path.name) and topic_id and number.isdecimal():
                renewed += renew(path, Place(topic_id, int(number)), self._files)
        if self._damage:
            self._files.move(self.path / "broker.json", self.path / "broker.json.damaged")
            self._files.sync_directory(self.path)
        if renewed:
            why = self._damage or (
                f"data directory {self.path} is an older copy of itself, or lost its broker.json: its stamp is "
                f"{self._stamp}, and broker {self.broker} had come to {known}"
            )
            ALARMS.add("old_directory")
            _logger.error(
                "%s. Its %d logs go on under new ids with what they hold, and the other replicas send what they lack. "
                "Where none of those is in sync, nobody leads until `tritonmq partition recover`",
                why,
                renewed,
            )

    def raise_stamp(self) -> int:
        """The next stamp, durably: only then may others be told of it. Blocks: call it in a thread. Raises
        `StorageFailed`."""
        with self._at_work(), self._stamping, _failing(self.path, "takes no stamp"):
            self._stamp += 1
            self._write_owner()
            return self._stamp

    def close(self) -> None:
        """Part of a clean stop; close the journals before."""
        (self.path / "broker.pid").unlink(missing_ok=True)
        self._let_go()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._guard:
            if self._holders == 0:
                raise StorageFailed(f"data directory {self.path} is closed: this broker is stopping")
            self._holders += 1
        try:
            yield
        finally:
            self._let_go()

    def _let_go(self) -> None:
        with self._guard:
            self._holders -= 1
            if self._holders == 0:
                os.close(self._lock_fd)

    def partition_path(self, place: Place) -> Path:
        """Raises `StorageFailed` for a place whose directory would not be this broker's own, whoever has named it."""
        name = f"{place.topic_id}-{place.partition}"
        if not _PLAIN.fullmatch(name):
            raise StorageFailed(
                f"{quoted(name)} is no partition's directory: nothing is read, written or removed there"
            )
        return self.path / "partitions" / name

    def open_journal(
        self,
        place: Place,
        durability: str,
        segment_bytes_max: int,
        listener: JournalListener,
        writer: Writer,
        *,
        topic: str = "",
        cache_bytes_max: int = JOURNAL_CACHE_BYTES_MAX,
        key: str = "",
    ) -> OpenJournal:
        """The partition's journal, recovered, or a new one. Blocks while it checks what no checkpoint is of: call it in
        a thread. `key`: the name of the key that what begins is sealed with, if that is not the broker's.

        Damage is put aside and told (opening.py). Raises `StorageFailed` if the disk refuses, `SealedAway` where a key
        is missing or does not fit, `InvalidSetting` for a durability that there is not.
        """
        if durability not in DURABILITIES:
            raise InvalidSetting(f"durability={durability}: there are {', '.join(DURABILITIES)}")
        if durability == "memory":
            return open_memory_journal(listener, place)
        sealing = self._sealing(place, key)
        with self._at_work():
            return open_disk_journal(
                self.partition_path(place),
                place,
                durability,
                listener,
                writer,
                topic=topic,
                segment_bytes_max=segment_bytes_max or SEGMENT_BYTES_MAX,
                cache_bytes_max=cache_bytes_max,
                at_work=self._at_work,
                boot=self._boot,
                sealing=sealing,
            )

    def check_key(self, name: str) -> None:
        """Raises `InvalidSetting` if it is known that this broker has no key called so. May wait for the keys'
        provider."""
        if self._keys is None:
            cure = "it was given no keys; start each broker with --encrypt KEYREF"
        elif self._keys.lacks(name):
            cure = f"make it with `tritonmq keys create {name}`, or bring it to each broker's keys"
        else:
            return
        raise InvalidSetting(f"broker {self.broker} has no key called {quoted(name)}: {cure}. The topic was not made")

    def _sealing(self, place: Place, key: str) -> Sealing | None:
        if self._keys is not None:
            return Sealing(self._keys, key)
        if not key:
            return None
        raise KeyAbsent(
            f"partition {place.partition} of topic id {place.topic_id} is to be sealed with the key called "
            f"{quoted(key)}, and this broker was given no keys: start it with --encrypt KEYREF",
            key,
        )

    def install(
        self, place: Place, durability: str, topic: str, snapshot: Snapshot, recovery: int, key: str = ""
    ) -> None:
        """Replace a closed journal, or none, by one that begins with `snapshot` and holds nothing else, under a new log
        id.

        Blocks: call it in a thread. After a crash on the way the journal opens empty, under a new log id. For a
        partition in memory use `open_memory_journal`. Raises `StorageFailed`; the journal is then as after a crash, and
        this can be repeated.
        """
        path = self.partition_path(place)
        sealing = self._sealing(place, key)
        data_key = sealing.keys.make(place, sealing.name) if sealing is not None else None
        with self._at_work(), _failing(path, "takes no snapshot"):
            identity = fresh_identity(path, place, durability, topic, recovery, self._boot)
            install_snapshot(path, place, identity, snapshot, self._files, data_key)

    def start_over(self, place: Place, durability: str, topic: str, recovery: int) -> Path | None:
        """Put a closed journal aside, for people, and begin an empty one under a new log id and this recovery number
        (rule 15).

        Returns where it was put; None if there was nothing. Blocks: call it in a thread. A crash on the way leaves
        nothing behind that the next opening does not finish. Raises `StorageFailed`; this can be repeated then.
        """
        path = self.partition_path(place)
        with self._at_work(), _failing(path, "cannot be put aside"):
            identity = fresh_identity(path, place, durability, topic, recovery, self._boot)
            reason = (
                f"the partition was recovered from another log (recovery {recovery}); this one lacks, or has more "
                "than, that"
            )
            return start_over(path, place, identity, reason, self._files)

    def open_index(
        self,
        place: Place,
        durability: str,
        next_offset: int = 0,
        frozen: FrozenIndex | None = None,
    ) -> OffsetIndex:
        """An offset index, beside the journal for those on disk: empty, or with what a checkpoint has of it.
        `next_offset`: of the journal's snapshot."""
        path = None if durability == "memory" else self.partition_path(place) / "offsets.index"
        if frozen is None:
            return OffsetIndex(path, 0, next_offset)
        index = OffsetIndex.thawed(frozen, path)
        index.trim(next_offset)
        return index

    def delete_partition(self, place: Place) -> None:
        """Remove a closed journal for good. Only ever on the word of the coordination service that the topic was
        deleted, or the replica is elsewhere now: that metadata is missing is not an order (trap 18). Raises
        `StorageFailed`."""
        path = self.partition_path(place)
        if not path.exists():
            return
        doomed = path.with_name(path.name + _DELETED)
        try:
            with self._at_work():
                if doomed.exists():  # an earlier life of the replica here, which could not be removed to its end
                    shutil.rmtree(doomed)
                path.rename(doomed)
                self._files.sync_directory(path.parent)
                shutil.rmtree(doomed)
        except OSError as error:
            raise StorageFailed(
                f"{path} cannot be removed ({error}): remove it, or {doomed.name} beside it, by hand once this broker "
                "has stopped"
            ) from error

    def _write_owner(self) -> None:
        document = {"broker": self.broker, "cluster_id": self.cluster_id}
        if self._stamp:
            document |= {"stamp": self._stamp, "incarnation": self.incarnation}
        content = with_unknown(document, self._unknown)
        self._files.replace(self.path / "broker.json", (json.dumps(content) + "\n").encode())


@contextlib.contextmanager
def _failing(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"{path} {what} ({error}): free space there, or check that disk") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """No broker uses the data directory meanwhile. Raises `InvalidSetting` if one does, `StorageFailed` if it is
    none."""
    if not (path / "partitions").is_dir():
        raise StorageFailed(f"{path} is no data directory: it has no folder `partitions`; give --data another")
    fd = _lock(path)
    try:
        yield
    finally:
        os.close(fd)


def _make_private(path: Path) -> None:
    """The directory, and what partitions lie in: for this user and its group. What others could do in a directory that
    was there is taken from them, if it is this user's."""
    (path / "partitions").mkdir(parents=True, exist_ok=True, mode=0o750)
    for each in (path, path / "partitions"):
        found = each.stat()
        if found.st_mode & 0o027 and found.st_uid == os.geteuid():
            each.chmod(stat.S_IMODE(found.st_mode) & ~0o027)


def _write_pid(path: Path) -> None:
    """On a full disk the file stays empty, if it can be made at all: a broker that could not start there could not make
    room either."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            os.write(fd, f"{os.getpid()}\n".encode())
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _DISK_IS_FULL:
            raise
        _logger.warning("%s cannot hold the process id (%s): free some space there", path, error)


def _lock(path: Path) -> int:
    fd = os.open(path / "broker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        pid = (path / "broker.pid").read_text().strip() if (path / "broker.pid").exists() else ""
        raise InvalidSetting(
            f"data directory {path} is in use by another process (pid {pid or 'unknown'}): stop it, or give --data "
            "another directory"
        ) from error
    return fd


class _Owner(NamedTuple):
    """What `broker.json` says. `unknown`: keys that only a newer version knows, as JSON; every write keeps them.
    `damage`: why nothing of it can be believed; empty if it can."""

    broker: int
    cluster_id: str = ""
    unknown: str = ""
    stamp: int = 0
    incarnation: int = 0
    damage: str = ""


def _read_owner(path: Path, broker: int) -> _Owner:
    """What `broker.json` says; without a cluster if there is none yet, or it is damaged. Raises `StorageFailed`,
    `InvalidSetting` and, unless that is damage too, `OSError`."""
    try:
        content = json.loads((path / "broker.json").read_bytes())
        found = content.get("format", FORMAT)
        unknown = unknown_keys(content, _OWNER_KEYS, _UNKNOWN_BYTES_MAX)
        lives = content.get("stamp", 0), content.get("incarnation", 0)
        owner = _Owner(content["broker"], content["cluster_id"], unknown, *lives)
        if [type(each) for each in (owner.broker, owner.cluster_id, *lives)] != [int, str, int, int]:
            raise TypeError("its values are of other types")
        if not (0 <= owner.stamp <= STAMP_MAX and 0 <= owner.incarnation <= INCARNATION_MAX):
            raise ValueError(f"there is no stamp or incarnation {lives}")
    except FileNotFoundError:
        return _Owner(broker)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return _Owner(broker, damage=f"{path / 'broker.json'} is damaged ({quoted(repr(error))})")
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return _Owner(broker, damage=f"{path / 'broker.json'} is damaged (the disk cannot read it)")
    if found != FORMAT:
        shown = f"of format {found}" if type(found) is int else "of no format that is known"
        raise StorageFailed(
            f"data directory {path} is {shown}, and this version reads format {FORMAT}: nothing of it was "
            "changed; start the TritonMQ version that wrote it, or a newer one"
        )
    if owner.broker != broker:
        raise InvalidSetting(
            f"data directory {path} belongs to broker {owner.broker}, not {broker}: start it with --id {owner.broker}, "
            "or change --data"
        )
    return owner
