"""`log.json`: which log this is, and what may be believed about it (core/DESIGN.md, "Names").

Log id, boot id and clean mark are one file, replaced atomically: no crash can leave the new boot id beside the old log
id (trap 28). The mark goes before the first write and comes back when a clean stop has synced everything. A `Cut` that
is under way stands in the same file: what takes entries out of a log begins with a new log id, and a crash on the way
leaves the intention, not a half of it (quarantine.py).
"""

from __future__ import annotations

import errno
import json
import uuid
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Final

from mq_broker.storage.codec.frame import Place
from mq_broker.storage.files import Files
from mq_protocol.errors import StorageFailed
from mq_protocol.names import quoted
from mq_protocol.unknown_keys import unknown_keys, with_unknown

FILE_NAME: Final = "log.json"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """What is being taken out of a log: everything from `position` of segment `segment` on; all, the snapshot too, if
    that is 0.

    It goes into the directory `aside` beside the segments, or away for good if that is empty. The log then ends at
    `last_index`.
    """

    segment: int
    position: int
    last_index: int
    aside: str
    reason: str


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """What `log.json` holds. `durability` is that under which the log was last written: it decides what a reboot may
    have cost. `recovery`: the last recovery (rule 15) that the log knows of. `cut`: what is to be finished before the
    log is opened. `unknown`: keys that only a newer version knows, as JSON; every write keeps them."""

    log_id: str
    boot_id: str
    clean: bool
    durability: str
    topic_id: str
    partition: int
    topic: str = ""
    recovery: int = 0
    cut: Cut | None = None
    unknown: str = ""

    def renewed(self) -> LogIdentity:
        """Another log as far as anybody's promises go: it may lack what the former one acknowledged."""
        return replace(self, log_id=new_log_id(), clean=False)

    def store(self, directory: Path, files: Files) -> None:
        document = {key: value for key, value in asdict(self).items() if key != "unknown"} | {"format": FORMAT}
        files.replace(
            directory / FILE_NAME, (json.dumps(with_unknown(document, self.unknown), indent=1) + "\n").encode()
        )


_FIELDS: Final = frozenset(each.name for each in fields(LogIdentity)) - {"unknown"}
_UNKNOWN_BYTES_MAX: Final = 4 << 10


def _check_types(identity: LogIdentity) -> None:
    """Raises `TypeError` for a value of another type than the one that is always written."""
    named: list[tuple[str, object, type]] = [
        (name, getattr(identity, name), str) for name in ("log_id", "boot_id", "durability", "topic_id", "topic")
    ]
    named += [(name, getattr(identity, name), int) for name in ("partition", "recovery")]
    named.append(("clean", identity.clean, bool))
    if (cut := identity.cut) is not None:
        named += [(f"cut.{name}", getattr(cut, name), int) for name in ("segment", "position", "last_index")]
        named += [(f"cut.{name}", getattr(cut, name), str) for name in ("aside", "reason")]
    for name, value, kind in named:
        if type(value) is not kind:
            raise TypeError(f"{name} is a {type(value).__name__}, not a {kind.__name__}")


class IdentityLost(StorageFailed):
    """There is no telling which log this is: `log.json` is damaged, or missing beside entries."""


def new_log_id() -> str:
    return uuid.uuid4().hex


def boot_id() -> str:
    """This boot of the kernel: memory that was not written to disk is gone exactly when it changes."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def load_identity(directory: Path, place: Place) -> LogIdentity | None:
    """What `log.json` says; None if there is none. Raises `IdentityLost` if it is damaged, and `StorageFailed` if it is
    of another place or version, or the disk does not give it."""
    path = directory / FILE_NAME
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise IdentityLost(f"{path} is damaged ({quoted(str(error))})") from error
    except OSError as error:
        if error.errno == errno.EIO:
            raise IdentityLost(f"{path} is damaged (the disk cannot read it)") from error
        raise StorageFailed(f"{path} cannot be read ({error}): check that disk and its rights") from error
    found = raw.get("format") if isinstance(raw, dict) else None
    if type(found) is not int:
        raise IdentityLost(f"{path} is damaged (it names no format)")
    if found != FORMAT:
        raise StorageFailed(
            f"{path} is of format {found}, and this version reads format {FORMAT}: the journal is left as it is; "
            "start the TritonMQ version that wrote it, or a newer one"
        )
    try:
        if raw.get("cut") is not None:
            raw["cut"] = Cut(**raw["cut"])
        known = {key: value for key, value in raw.items() if key in _FIELDS}
        identity = LogIdentity(**known, unknown=unknown_keys(raw, {*_FIELDS, "format"}, _UNKNOWN_BYTES_MAX))
        _check_types(identity)
    except (TypeError, ValueError) as error:
        raise IdentityLost(f"{path} is damaged (it does not name a log: {quoted(str(error))})") from error
    if (identity.topic_id, identity.partition) != (place.topic_id, place.partition):
        raise StorageFailed(
            f"{directory} holds partition {identity.partition} of topic id {quoted(identity.topic_id)}, not "
            f"{place.partition} of {place.topic_id}: it was moved or renamed; put it back under its own name"
        )
    return identity
