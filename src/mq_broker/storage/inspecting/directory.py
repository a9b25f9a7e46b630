"""A data directory that no broker uses, as it lies there: whose it is, and which partitions it holds."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mq_broker.storage.codec.checkpoint import FILE_NAME as CHECKPOINT_FILE_NAME
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.codec.snapshot import FILE_NAME as SNAPSHOT_FILE_NAME
from mq_broker.storage.identity import FILE_NAME as IDENTITY_FILE_NAME
from mq_broker.storage.identity import LogIdentity, load_identity
from mq_broker.storage.inspecting.reading import opened, read_small
from mq_broker.storage.journal.segments import MARK_FILE_NAME, SEGMENT_SUFFIX, unpack_mark
from mq_broker.storage.keyring import Keyring
from mq_protocol.errors import InvalidSetting, StorageFailed
from mq_protocol.names import quoted

WHY_FILE_NAME: Final = "why.txt"
WHY_BYTES_MAX: Final = 64 << 10

_PARTITION: Final = re.compile(r"([0-9A-Za-z_-]{1,117})-([0-9]{1,10})")
_ASIDE: Final = re.compile(r"aside-[0-9]{1,18}")
_DIGITS: Final = re.compile(r"[0-9]{20}")
_PARTITION_MAX: Final = (1 << 32) - 1
_INDEX_MAX: Final = (1 << 64) - 1
_NEEDLESS: Final = ("offsets.index", CHECKPOINT_FILE_NAME)


@dataclass(frozen=True, slots=True)
class Segment:
    first_index: int
    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class Aside:
    """What a broker put into quarantine. `why`: its `why.txt`, the first `WHY_BYTES_MAX` bytes of it at most."""

    path: Path
    files: tuple[tuple[str, int], ...]
    why: str

    @property
    def size(self) -> int:
        return sum(size for _, size in self.files)


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The directory of one partition. `strangers`: names in it that storage does not give, or gives only for a
    moment. `keys`: what opens it, if it is sealed and they were given."""

    path: Path
    place: Place
    segments: tuple[Segment, ...]
    asides: tuple[Aside, ...]
    strangers: tuple[str, ...]
    keys: Keyring | None = None

    @property
    def size(self) -> int:
        """Bytes of the segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def has_snapshot(self) -> bool:
        return os.path.lexists(self.path / SNAPSHOT_FILE_NAME)

    def identity(self) -> LogIdentity | None:
        """What `log.json` says; None if there is none. Raises `StorageFailed` if it cannot be believed."""
        path = self.path / IDENTITY_FILE_NAME
        try:
            read_small(path)  # for its bound: what follows reads it all
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"{path} cannot be read ({error})") from error
        return load_identity(self.path, self.place)

    def mark(self) -> bytes | None:
        """The bytes of the flushed mark; None without one. Raises `OSError` and `StorageFailed`."""
        try:
            return read_small(self.path / MARK_FILE_NAME, 4096)
        except FileNotFoundError:
            return None

    def flushed(self) -> int | None:
        """The last entry that is noted as synced; None if that is not known. Raises `OSError` and `StorageFailed`."""
        data = self.mark()
        return None if data is None else unpack_mark(self.place, data)

    def topic(self) -> str:
        """Its name; empty if that cannot be told."""
        try:
            identity = self.identity()
        except StorageFailed:
            return ""
        return "" if identity is None else identity.topic


@dataclass(frozen=True, slots=True)
class InspectedDirectory:
    """`broker` and `cluster_id`: what `broker.json` says; None and empty, with `wrong`, if that cannot be read.
    `locked`: no broker can start in it meanwhile. `strangers`: directories among the partitions that are none."""

    path: Path
    broker: int | None
    cluster_id: str
    wrong: str
    locked: bool
    partitions: tuple[PartitionFiles, ...]
    strangers: tuple[str, ...]

    def find(self, topic: str, partition: int) -> PartitionFiles:
        """By the topic's name or id. Raises `StorageFailed` for none, and for a name that several topics had."""
        numbered = [each for each in self.partitions if each.place.partition == partition]
        found = [each for each in numbered if each.place.topic_id == topic] or [
            each for each in numbered if each.topic() == topic
        ]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(each.place.topic_id for each in found)
            raise StorageFailed(f"topic {quoted(topic)} was made several times: name one by its id, of {ids}")
        raise StorageFailed(
            f"{self.path} holds no partition {partition} of a topic {quoted(topic)}: see `tritonmq storage list`; "
            "partitions of durability=memory are on no disk"
        )


@contextlib.contextmanager
def look_into(path: Path, keys: Keyring | None = None) -> Iterator[InspectedDirectory]:
    """While it is looked into no broker can start in it. `keys` open what is sealed. Raises `InvalidSetting` if a
    broker runs, `StorageFailed` if it is no data directory or cannot be read."""
    with contextlib.ExitStack() as stack:
        try:
            if not (path / "partitions").is_dir():
                raise StorageFailed(f"{path} is no data directory: it has no folder `partitions`; give --data another")
            locked = stack.enter_context(_shared_lock(path))
            broker, cluster_id, wrong = _owner(path)
            partitions, strangers = _partitions(path / "partitions", keys)
        except OSError as error:
            raise StorageFailed(f"{path} cannot be read ({error}): run this as the user who runs the broker") from error
        yield InspectedDirectory(path, broker, cluster_id, wrong, locked, partitions, strangers)


@contextlib.contextmanager
def _shared_lock(path: Path) -> Iterator[bool]:
    """Shared, so that several can look at once; a broker wants it alone. False without a file to lock, which every
    broker makes: to make it would be a change."""
    with contextlib.ExitStack() as stack:
        try:
            fd = stack.enter_context(opened(path / "broker.lock"))
        except FileNotFoundError:
            yield False
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidSetting(
                f"data directory {path} is in use by a broker (pid {_pid(path)}): stop that broker first, or look into "
                "a copy that was made while it was stopped"
            ) from None
        yield True


def _pid(path: Path) -> str:
    try:
        return quoted(read_small(path / "broker.pid", 64).decode("utf-8", "replace").strip()).strip("'") or "unknown"
    except (OSError, StorageFailed):
        return "unknown"


def _owner(path: Path) -> tuple[int | None, str, str]:
    file = path / "broker.json"
    try:
        content: Any = json.loads(read_small(file))
        broker, cluster_id = content["broker"], content["cluster_id"]
        if type(broker) is not int or type(cluster_id) is not str:
            raise TypeError("its values are of other types")
    except FileNotFoundError:
        return None, "", f"{file} is missing"
    except (OSError, StorageFailed, ValueError, KeyError, TypeError, RecursionError) as error:
        return None, "", f"{file} cannot be read ({error!r})"
    return broker, cluster_id, ""


def _partitions(path: Path, keys: Keyring | None) -> tuple[tuple[PartitionFiles, ...], tuple[str, ...]]:
    found: list[PartitionFiles] = []
    strangers: list[str] = []
    for name in sorted(os.listdir(path)):
        match = _PARTITION.fullmatch(name)
        known = match is not None and int(match[2]) <= _PARTITION_MAX and str(int(match[2])) == match[2]
        if match is None or not known or not (path / name).is_dir():
            strangers.append(name)
        else:
            found.append(files_of(path / name, Place(match[1], int(match[2])), keys))
    return tuple(found), tuple(strangers)


def files_of(path: Path, place: Place, keys: Keyring | None = None) -> PartitionFiles:
    """What lies in a partition's directory. Raises `OSError`."""
    segments: list[Segment] = []
    asides: list[Aside] = []
    strangers: list[str] = []
    for name in sorted(os.listdir(path)):
        stem = name.removesuffix(SEGMENT_SUFFIX)
        if stem != name and _DIGITS.fullmatch(stem) and 0 < int(stem) <= _INDEX_MAX:
            segments.append(Segment(int(stem), path / name, (path / name).lstat().st_size))
        elif _ASIDE.fullmatch(name) and (path / name).is_dir():
            asides.append(_aside(path / name))
        elif name not in (IDENTITY_FILE_NAME, MARK_FILE_NAME, SNAPSHOT_FILE_NAME, *_NEEDLESS):
            strangers.append(name)
    asides.sort(key=lambda aside: int(aside.path.name.partition("-")[2]))
    return PartitionFiles(path, place, tuple(segments), tuple(asides), tuple(strangers), keys)


def _aside(path: Path) -> Aside:
    files = tuple((name, (path / name).lstat().st_size) for name in sorted(os.listdir(path)) if name != WHY_FILE_NAME)
    try:
        why = read_small(path / WHY_FILE_NAME, WHY_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, StorageFailed) as error:
        why = f"{WHY_FILE_NAME} cannot be read ({error})"
    return Aside(path, files, why)
