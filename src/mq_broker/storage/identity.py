"""`log.json`: which log this is, and what may be believed about it (replication.md, "Names").

Log id, boot id and clean mark are one file, replaced atomically: no crash can leave the new boot id beside the old log id (trap
28). The mark goes before the first write and comes back when a clean stop has synced everything.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from mq_broker.storage.files import Files
from mq_broker.storage.frame import Place
from mq_protocol.errors import StorageFailed

FILE_NAME: Final = "log.json"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """What `log.json` holds. `durability` is that under which the log was last written: it decides what a reboot may have cost."""

    log_id: str
    boot_id: str
    clean: bool
    durability: str
    topic_id: str
    partition: int
    topic: str = ""
    format: int = FORMAT

    def renewed(self) -> LogIdentity:
        """Another log as far as anybody's promises go: it may lack what the former one acknowledged."""
        return replace(self, log_id=new_log_id(), clean=False)

    def store(self, directory: Path, files: Files) -> None:
        files.replace(directory / FILE_NAME, (json.dumps(asdict(self), indent=1) + "\n").encode())


def new_log_id() -> str:
    return uuid.uuid4().hex


def boot_id() -> str:
    """This boot of the kernel: memory that was not written to disk is gone exactly when it changes."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def load_identity(directory: Path, place: Place) -> LogIdentity | None:
    """What `log.json` says; None if there is none. Raises `StorageFailed` if it cannot be believed or is of another place."""
    path = directory / FILE_NAME
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageFailed(
            f"{path} cannot be read ({error}): move {directory} away and restart, to have it copied from a replica"
        ) from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise StorageFailed(f"{path} is not of format {FORMAT}: start the TritonMQ version that wrote it, or a newer one")
    try:
        identity = LogIdentity(**raw)
    except TypeError as error:
        raise StorageFailed(f"{path} does not name a log ({error}): move {directory} away and restart") from error
    if (identity.topic_id, identity.partition) != (place.topic_id, place.partition):
        raise StorageFailed(
            f"{directory} holds partition {identity.partition} of topic id {identity.topic_id}, not {place.partition} of"
            f" {place.topic_id}: it was moved or renamed; put it back under its own name"
        )
    return identity
