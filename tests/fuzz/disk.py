"""Small files of a broker's data directory, altered, as a disk or an editor may have left them.

The first byte says which it is to be.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from mq_broker.coordination import documents, file
from mq_broker.coordination.credential import Credential
from mq_broker.coordination.interface import TopicSpec
from mq_broker.coordination.store import Kept, Tree
from mq_broker.storage.files import OsFiles
from mq_broker.storage.identity import Cut, LogIdentity, load_identity
from mq_broker.storage.inspecting.directory import _owner
from mq_broker.storage.journal.recovered import read_mark
from mq_broker.storage.journal.segments import MARK_FILE_NAME, pack_mark
from mq_broker.storage.opening.directory import _read_owner
from mq_protocol.errors import InternalError, InvalidSetting, StorageFailed
from tests.fuzz.altering import altered, altered_document
from tests.fuzz.telling import check_told
from tests.mq_broker.coordination.wire import id_of
from tests.mq_broker.storage.bed import PLACE

_ROOM: Final = tempfile.TemporaryDirectory()
_DIRECTORY: Final = Path(_ROOM.name)


class OnDisk(NamedTuple):
    """A file of that name: what it holds, and who reads it in its directory."""

    name: str
    whole: dict[str, Any] | bytes
    read: Callable[[Path], object]


def _log(directory: Path) -> object:
    found = load_identity(directory, PLACE)
    assert found is not None
    found.store(directory, OsFiles())
    assert load_identity(directory, PLACE) == found
    return found


def _broker(directory: Path) -> object:
    _owner(directory)  # of `tritonmq storage`, which tells what is wrong and goes on
    return _read_owner(directory, 1)


def _identity() -> dict[str, Any]:
    LogIdentity(
        "a" * 32, "b" * 36, True, "fsync", PLACE.topic_id, PLACE.partition, "t", 3, Cut(1, 20, 7, "aside", "why")
    ).store(_DIRECTORY, OsFiles())
    found: dict[str, Any] = json.loads((_DIRECTORY / "log.json").read_bytes())
    return found


def _credential(directory: Path) -> object:
    return Credential.read(directory / "zookeeper.auth")


def _coordination() -> dict[str, Any]:
    topic = TopicSpec("t", id_of("t"), ((1,),))
    topics = {"topics/t": Kept(documents.dump(documents.topic_to_json(topic)), 2, 8)}
    file._store(_DIRECTORY, Tree({"brokers/lives/1": Kept(b"", 4, 7), **topics}), 9)
    found: dict[str, Any] = json.loads((_DIRECTORY / "coordination.json").read_bytes())
    return found


FILES: Final = (
    OnDisk("log.json", _identity(), _log),
    OnDisk("broker.json", {"format": 1, "broker": 1, "cluster_id": "c" * 32}, _broker),
    OnDisk("coordination.json", _coordination(), file.read_topics),
    OnDisk(MARK_FILE_NAME, pack_mark(PLACE, 77), lambda directory: read_mark(directory, PLACE)),
    OnDisk(
        "zookeeper.auth",
        b"tritonmq:" + b"0123456789abcdef" * 4 + b"\n",
        lambda d: Credential.read(d / "zookeeper.auth"),
    ),
)


def generate(chance: random.Random) -> bytes:
    number = chance.randrange(len(FILES))
    whole = FILES[number].whole
    if isinstance(whole, dict):
        return bytes([number]) + altered_document(whole, chance)
    return bytes([number]) + (altered(whole, chance, 3) if chance.random() < 0.8 else whole)


def check(data: bytes) -> bool:
    if not data:
        return False
    on_disk = FILES[data[0] % len(FILES)]
    path = _DIRECTORY / on_disk.name
    path.write_bytes(data[1:])
    path.chmod(0o600)
    try:
        return on_disk.read(_DIRECTORY) is not None
    except (StorageFailed, InvalidSetting, InternalError) as error:
        check_told(error)
        return False
