"""Taking entries out of a log that is closed: damage put aside, a snapshot installed, a log begun anew. Crashes
included.

Each begins with `log.json` replaced by one with a new log id and a `Cut`; from then on nobody takes this log for what
it was. What follows can be repeated from any point, and is, at the next opening, if a crash came between
(`finish_cut`). In the order given:

1. later segments are moved;
2. if nothing is to stay, the snapshot is moved;
3. the segment that is cut is moved whole, bad bytes and all (a disk that cannot read them can still rename them), and
   what was good of it is put in its place, from a copy made before;
4. the flushed mark is lowered to what is left;
5. `log.json` is replaced by one without the cut.

What is put aside lies in `aside-<n>` in the partition's directory, with a `why.txt`; nothing here reads it again. It is
for people: they may delete it at any time. Of one partition the newest `ASIDES_MAX` are kept.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

from mq_broker.core.machine.state import Snapshot
from mq_broker.storage.codec import checkpoint
from mq_broker.storage.codec import snapshot as snapshots
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.files import Files
from mq_broker.storage.identity import FILE_NAME, Cut, IdentityLost, LogIdentity, load_identity, new_log_id
from mq_broker.storage.journal.recovery import holds_entries, segment_firsts
from mq_broker.storage.journal.segments import MARK_FILE_NAME, pack_mark, segment_path
from mq_broker.storage.sealed import DataKey

ASIDES_MAX: Final = 10
"""Directories kept aside, a partition: a disk that fails again and again must not fill up with what it failed."""

_ASIDE: Final = "aside-"
_GOOD_SUFFIX: Final = ".good"
_COPY_BYTES: Final = 4 << 20

_logger = logging.getLogger(__name__)


def install_snapshot(
    directory: Path,
    place: Place,
    identity: LogIdentity,
    snapshot: Snapshot,
    files: Files,
    key: DataKey | None,
) -> None:
    """Replace the log in `directory` by one that is nothing but `snapshot`, sealed if there is a key. `identity` is its
    new name.

    Until the last step the directory opens as an empty log of that name. Raises `OSError`.
    """
    begin_cut(
        directory, identity, Cut(0, 0, 0, "", f"a snapshot up to entry {snapshot.last_index} is being installed"), files
    )
    _take_out(directory, place, Cut(0, 0, snapshot.last_index, "", ""), files)
    data = snapshots.encode_snapshot(place, snapshot)
    files.replace(directory / snapshots.FILE_NAME, data if key is None else key.seal_snapshot(data))
    identity.store(directory, files)


def start_over(directory: Path, place: Place, identity: LogIdentity, reason: str, files: Files) -> Path | None:
    """Put everything aside and begin an empty log named `identity`. Returns where it was put, None if there was
    nothing.

    What an earlier call began to put aside goes to the same directory. Raises `OSError`.
    """
    former = _former(directory, place)
    begun = former.cut.aside if former is not None and former.cut is not None and former.cut.segment == 0 else ""
    aside = begun or (next_aside(directory) if holds_entries(directory) else "")
    finish_cut(directory, place, begin_cut(directory, identity, Cut(0, 0, 0, aside, reason), files), files)
    return directory / aside if aside else None


def fresh_identity(directory: Path, place: Place, durability: str, topic: str, recovery: int, boot: str) -> LogIdentity:
    """A new name for the log in `directory`, be there one or not. Raises `StorageFailed` if what is there is
    another's."""
    former = _former(directory, place)
    topic = topic or (former.topic if former is not None else "")
    return LogIdentity(new_log_id(), boot, False, durability, place.topic_id, place.partition, topic, recovery)


def _former(directory: Path, place: Place) -> LogIdentity | None:
    """None as well where there is no telling: all of it is about to be replaced."""
    try:
        return load_identity(directory, place)
    except IdentityLost:
        return None


def renew(directory: Path, place: Place, files: Files) -> bool:
    """The log in `directory` is another from here on, with all that it holds. Returns whether there was one. Raises
    `StorageFailed` for one that a newer version wrote or that is of another place, and `OSError`."""
    try:
        identity = load_identity(directory, place)
    except IdentityLost as lost:
        put_identity_aside(directory, str(lost), files)  # it must not be readable again one day
        return holds_entries(directory)
    if identity is not None:
        identity.renewed().store(directory, files)
    return holds_entries(directory)


def put_identity_aside(directory: Path, reason: str, files: Files) -> Path | None:
    """Move the log's identity into a quarantine of its own. Returns where that is; None if it has none. Raises
    `OSError`."""
    if not (directory / FILE_NAME).exists():
        return None
    aside = directory / next_aside(directory)
    _begin_aside(directory, aside, reason, files)
    files.move(directory / FILE_NAME, aside / FILE_NAME)
    files.sync_directory(aside)
    files.sync_directory(directory)
    _drop_oldest(directory)
    return aside


def next_aside(directory: Path) -> str:
    """The name of a directory to put things in that is not there yet."""
    return f"{_ASIDE}{max(_asides(directory), default=0) + 1}"


def begin_cut(directory: Path, identity: LogIdentity, cut: Cut, files: Files) -> LogIdentity:
    """From here on the log is `identity`, and the cut is to be finished before it is opened."""
    identity = replace(identity, cut=cut)
    directory.mkdir(parents=True, exist_ok=True)
    files.sync_directory(directory.parent)
    identity.store(directory, files)
    return identity


def finish_cut(directory: Path, place: Place, identity: LogIdentity, files: Files) -> LogIdentity:
    """Carry out what is left of the cut that `identity` names. Returns the name without it. Raises `OSError`."""
    assert identity.cut is not None, "nothing is to be cut"
    _take_out(directory, place, identity.cut, files)
    identity = replace(identity, cut=None)
    identity.store(directory, files)
    _drop_oldest(directory)
    return identity


def _drop_oldest(directory: Path) -> None:
    for old in sorted(_asides(directory))[:-ASIDES_MAX]:
        _logger.warning("%s: the oldest quarantined log is removed, %s%d", directory, _ASIDE, old)
        shutil.rmtree(directory / f"{_ASIDE}{old}")


def _begin_aside(directory: Path, aside: Path, reason: str, files: Files) -> None:
    aside.mkdir(exist_ok=True)
    files.sync_directory(directory)
    words = f"{reason}\nNothing reads these files any more: delete them when you like.\n"
    files.replace(aside / "why.txt", words.encode())


def _asides(directory: Path) -> list[int]:
    """The numbers of what was put aside."""
    names = [path.name.removeprefix(_ASIDE) for path in directory.glob(f"{_ASIDE}*")]
    return [int(name) for name in names if name.isdigit()]


def _take_out(directory: Path, place: Place, cut: Cut, files: Files) -> None:
    aside = directory / cut.aside if cut.aside else None
    if aside is not None:
        _begin_aside(directory, aside, cut.reason, files)
    going = [
        segment_path(directory, first)
        for first in segment_firsts(directory)
        if first > cut.segment or (first == cut.segment and cut.position == 0)
    ]
    if cut.segment == 0 and (directory / snapshots.FILE_NAME).exists():
        going.append(directory / snapshots.FILE_NAME)
    if (directory / checkpoint.FILE_NAME).exists():  # of the log that this was: it would only take room
        files.remove(directory / checkpoint.FILE_NAME)
    for path in going:
        if aside is None:
            files.remove(path)
        else:
            files.move(path, aside / path.name)
    if aside is not None and cut.segment and cut.position:
        _shorten_segment(segment_path(directory, cut.segment), aside, cut.position, files)
    if aside is not None:
        files.sync_directory(aside)
    files.sync_directory(directory)
    files.replace(directory / MARK_FILE_NAME, pack_mark(place, cut.last_index))


def _shorten_segment(path: Path, aside: Path, size: int, files: Files) -> None:
    """What is good of it, under its name; the whole of it aside, if there is more."""
    good = path.with_suffix(_GOOD_SUFFIX)
    if path.exists() and not (aside / path.name).exists():
        if path.stat().st_size <= size:
            return
        _copy(path, good, size, files)
        files.move(path, aside / path.name)
        files.sync_directory(aside)
        files.sync_directory(path.parent)  # before its name is taken: a crash must not keep the second move alone
    if good.exists():
        files.move(good, path)


def _copy(source: Path, target: Path, size: int, files: Files) -> None:
    """The first `size` bytes, durably."""
    target.unlink(missing_ok=True)
    source_fd = files.open(source)
    try:
        target_fd = files.open(target)
        try:
            at = 0
            while at < size:
                data = files.read(source_fd, min(_COPY_BYTES, size - at), at)
                if not data:
                    raise OSError(5, f"{source} ends at byte {at}, although {size} were read before")
                view = memoryview(data)
                while view:
                    taken = files.write(target_fd, (view,), at)
                    view = view[taken:]
                    at += taken
            files.sync(target_fd)
        finally:
            files.close(target_fd)
    finally:
        files.close(source_fd)
    files.sync_directory(target.parent)
