"""Opening a journal on disk: its name, what a crash left unfinished, recovery, and what to do about damage.

A damaged log gets a new id first, durably, so that no broker counts on what it acknowledged (trap 15). The bad bytes
and all after them go into quarantine (quarantine.py). The journal opens with the good entries before, and the
partition's leader sends the rest. `OpenJournal.damaged` says so, and a warning in the log names the file, the byte and
the quarantine. Opening fails only if the disk refuses even that.

So it is where `log.json` is damaged, or missing beside entries: the log gets a new id, and keeps what it holds.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mq_broker.core.messages import RecoveredLog
from mq_broker.measured import ALARMS
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.files import Files
from mq_broker.storage.identity import (
    FILE_NAME,
    Cut,
    IdentityLost,
    LogIdentity,
    boot_id,
    load_identity,
    new_log_id,
)
from mq_broker.storage.interface import JournalListener, OpenJournal
from mq_broker.storage.journal.checkpoints import remove_unfinished
from mq_broker.storage.journal.journal import DiskJournal
from mq_broker.storage.journal.key_ahead import KeyAhead
from mq_broker.storage.journal.recovered import Recovered
from mq_broker.storage.journal.recovery import LogDamaged, holds_entries, recover, segment_firsts
from mq_broker.storage.journal.segments import MARK_FILE_NAME, LogFiles, pack_mark, segment_path
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.opening.quarantine import begin_cut, finish_cut, next_aside, put_identity_aside
from mq_protocol.errors import StorageFailed
from mq_protocol.limits import JOURNAL_CACHE_BYTES_MAX, SEGMENT_BYTES_MAX

_logger = logging.getLogger(__name__)


def open_disk_journal(
    directory: Path,
    place: Place,
    durability: str,
    listener: JournalListener,
    writer: Writer,
    *,
    topic: str = "",
    segment_bytes_max: int = SEGMENT_BYTES_MAX,
    cache_bytes_max: int = JOURNAL_CACHE_BYTES_MAX,
    boot: str = "",
    at_work: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    sealing: Sealing | None = None,
) -> OpenJournal:
    """The journal that lives in `directory`, recovered, or a new one. Blocks while it checks every frame that no
    checkpoint is of: call it in a thread.

    `boot` is this boot of the kernel, asked for if not given. The journal's own threads hold `at_work` while they
    change files. With `sealing` whatever begins is sealed. Raises `StorageFailed` if there is no telling what the
    directory holds, or the disk refuses; `SealedAway`, with nothing changed, if what is there does not open or there is
    no key for what begins.
    """
    boot = boot or boot_id()
    ahead = KeyAhead(sealing.keys, place, sealing.name) if sealing is not None else None
    keys = sealing.keys if sealing is not None else None
    try:
        found = _open_files(directory, place, durability, writer.files, topic, boot, keys)
        remove_unfinished(directory, writer.files)
    except OSError as error:
        raise StorageFailed(
            f"{directory} cannot be opened ({error}): check that disk and its rights, then restart this broker"
        ) from error
    identity, recovered = found.identity, found.recovered
    files = LogFiles(directory, place, identity, boot, recovered.tail, writer.files)
    journal = DiskJournal(
        files,
        place,
        recovered,
        listener,
        writer,
        segment_bytes_max=segment_bytes_max,
        cache_bytes_max=cache_bytes_max,
        at_work=at_work,
        ahead=ahead,
    )
    return OpenJournal(
        journal,
        RecoveredLog(tuple(recovered.entries), recovered.snapshot, recovered.checkpoint),
        identity.recovery,
        found.damaged,
        recovered.index,
    )


class Sealing(NamedTuple):
    """With which keys a journal is sealed; `name` as the topic's `encryption_key`, empty: the default."""

    keys: Keyring
    name: str = ""


class _Found(NamedTuple):
    identity: LogIdentity
    recovered: Recovered
    damaged: str


def _open_files(
    directory: Path, place: Place, durability: str, files: Files, topic: str, boot: str, keys: Keyring | None
) -> _Found:
    damaged = ""
    try:
        identity = load_identity(directory, place)
        if identity is None:
            new = _new_log(directory, place, durability, files, topic, boot)
            return _Found(new, Recovered(segments=[(1, 0)]), "")
    except IdentityLost as lost:
        identity, damaged = _another_log(directory, place, durability, topic, boot, lost, files), str(lost)
    nameless = bool(damaged)
    if identity.cut is not None:
        damaged = identity.cut.reason
        _logger.warning("%s: what a stop interrupted is finished: %s", directory, damaged)
        identity = finish_cut(directory, place, identity, files)
    rebooted = identity.boot_id != boot
    lossy = identity.durability != "fsync" and rebooted and not identity.clean
    another = replace(identity.renewed(), boot_id=boot)

    def renew() -> None:
        if lossy or nameless:
            another.store(directory, files)

    try:
        try:
            recovered = recover(
                directory,
                place,
                files,
                clean=identity.clean,
                lossy=lossy,
                rebooted=rebooted,
                about_to_change=renew,
                keys=keys,
                log_id=identity.log_id,
            )
            identity = another if lossy or nameless else identity
        except LogDamaged as damage:
            identity = _repair(directory, place, another, damage, files)
            damaged = f"{damaged}; {damage}" if damaged else str(damage)
            ALARMS.add("damage")
            recovered = recover(directory, place, files, clean=False, lossy=lossy, rebooted=rebooted, keys=keys)
    except OSError as error:
        if error.errno == errno.EIO:
            _renew_again(directory, place, boot, files)
        raise
    if identity.durability != durability or (topic and identity.topic != topic):
        # After the sync above: had the new promise been written before it, a power loss now would be held to it.
        identity = replace(identity, durability=durability, topic=topic or identity.topic, boot_id=boot)
        identity.store(directory, files)
    return _Found(identity, recovered, damaged)


def _new_log(directory: Path, place: Place, durability: str, files: Files, topic: str, boot: str) -> LogIdentity:
    """An empty log with the mark and the first segment, which the first append would have to name durably. They become
    durable with `log.json`, which names them an empty log whatever else of them a crash has left."""
    if holds_entries(directory):
        raise IdentityLost(f"{directory / FILE_NAME} is missing beside segments")
    identity = LogIdentity(new_log_id(), boot, False, durability, place.topic_id, place.partition, topic)
    directory.mkdir(parents=True, exist_ok=True)
    files.close(files.open(segment_path(directory, 1)))
    mark_fd = files.open(directory / MARK_FILE_NAME)
    try:
        files.write(mark_fd, (pack_mark(place, 0),), 0)
    finally:
        files.close(mark_fd)
    identity.store(directory, files)
    files.sync_directory(directory.parent)
    return identity


def _another_log(
    directory: Path, place: Place, durability: str, topic: str, boot: str, lost: IdentityLost, files: Files
) -> LogIdentity:
    """What the log is to be where there is no telling which one it was, with all that it holds: its frames say whose
    they are. It is stored once they have been read. No recovery is known of it but what its entries say."""
    aside = put_identity_aside(directory, str(lost), files)
    ALARMS.add("damage")
    _logger.error(
        "%s%s. The log goes on under a new id with the entries that it has, and the partition's leader sends the rest. "
        "If no other replica is in sync, nobody leads until `tritonmq partition recover`. Check the disk",
        lost,
        f"; the file is in quarantine in {aside}" if aside is not None else "",
    )
    return LogIdentity(new_log_id(), boot, False, durability, place.topic_id, place.partition, topic)


def _repair(directory: Path, place: Place, identity: LogIdentity, damage: LogDamaged, files: Files) -> LogIdentity:
    """Begin to be another log, and put aside what is not good."""
    aside = next_aside(directory) if _anything_from(directory, damage.segment, damage.position) else ""
    cut = Cut(damage.segment, damage.position, damage.last_index, aside, str(damage))
    kept = (
        f"everything from there on is in quarantine in {directory / aside}: inspect it, then delete it"
        if aside
        else "nothing follows"
    )
    _logger.error(
        "%s; %s. The log continues after entry %d under the new id %s, and the partition's leader sends the rest. "
        "Check the disk",
        damage,
        kept,
        damage.last_index,
        identity.log_id,
    )
    return finish_cut(directory, place, begin_cut(directory, identity, cut, files), files)


def _anything_from(directory: Path, segment: int, position: int) -> bool:
    if segment == 0:
        return True
    firsts = segment_firsts(directory)
    path = segment_path(directory, segment)
    return any(first > segment for first in firsts) or (segment in firsts and path.stat().st_size > position)


def _renew_again(directory: Path, place: Place, boot: str, files: Files) -> None:
    """The disk fails, and the journal does not open: whatever it holds once it opens again, nobody counts on it. Best
    effort, for a disk that takes nothing does not open the journal either."""
    with contextlib.suppress(OSError, StorageFailed):
        identity = load_identity(directory, place)
        if identity is not None and identity.cut is None:
            replace(identity.renewed(), boot_id=boot).store(directory, files)
