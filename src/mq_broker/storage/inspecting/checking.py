"""Whether what lies in a data directory is what was written there: every checksum, and every rule by which a broker
opens a journal (recovery.py). What a broker would do about it, and what a person can.

Findings are of five kinds. `damaged`: the log lacks, or may lack, what it acknowledged, or a file is not what was
written. `altered`: its checksum holds and its seal does not, so somebody without the key wrote it. `unchecked`: a newer
version wrote it, a key is missing, or the search was given up; it may be all right. `torn`: what a crash leaves of
writes that nobody was promised. `note`: nothing is wrong, and a person may want to know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from mq_broker.storage.codec.snapshot import FILE_NAME as SNAPSHOT_FILE_NAME
from mq_broker.storage.identity import FILE_NAME as IDENTITY_FILE_NAME
from mq_broker.storage.identity import LogIdentity, boot_id
from mq_broker.storage.inspecting.contents import read_snapshot
from mq_broker.storage.inspecting.directory import InspectedDirectory, PartitionFiles, Segment
from mq_broker.storage.inspecting.walking import Bad, Frame, Sealed, walk
from mq_broker.storage.journal.recovery import damage_by_the_mark
from mq_broker.storage.journal.segments import MARK_FILE_NAME
from mq_broker.storage.sealed import Altered, KeyAbsent, WrongKey
from mq_protocol.errors import CorruptBatch, StorageFailed
from mq_protocol.names import quoted

Kind = Literal["damaged", "altered", "unchecked", "torn", "note"]

FINDINGS_MAX: Final = 1_000
"""Of one partition: behind so many bad places its segments are not walked any further."""

UNCOVERED: Final = (
    ("log.json", "only its form is checked, and its topic id and partition against the name of its directory"),
    ("broker.json, coordination.json", "only the form is checked, once a broker starts"),
    ("offsets.index", "a broker makes it anew from the journal at each start"),
    ("checkpoint", "what a broker has made of the journal, which it reads where that does not fit"),
    ("broker.pid, audit.log", "brokers do not read them"),
    ("aside-<n>", "what was damaged or given up; brokers do not read it"),
)
"""Which bytes of a data directory no checksum covers, and why."""

_ON_DISK: Final = ("fsync", "os")

_GIVE_THE_KEY: Final = "give --encrypt KEYREF to look inside too, e.g. file:/etc/tritonmq/keys.json"

_FROM_THE_LEADER: Final = (
    "at its next start the broker keeps the entries before, puts these bytes and all behind them aside, and copies "
    "what is missing from the partition's leader. If this is the only replica, what is behind is lost to readers: "
    "copy this directory first, and export what is good"
)
_ANOTHER_LOG: Final = (
    "put back what was written there; else the next start of the broker takes this for another log with the same "
    "entries, and the partition's leader sends the rest"
)
_ALL_FROM_THE_LEADER: Final = (
    "move the partition's directory out of the data directory: at its next start the broker copies all of it from the "
    "partition's leader. If this is the only replica, keep the directory"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """`position` and `end`: the bytes of `path`, `end` exclusive; both None for the file as a whole. `entries`: the
    first and the last entry that are concerned, where that is known; the last is None if all behind are."""

    kind: Kind
    path: Path
    what: str
    repair: str = ""
    position: int | None = None
    end: int | None = None
    entries: tuple[int, int | None] | None = None


@dataclass(slots=True)
class Checked:
    """What was found in one partition. `entries` and `size`: the good ones, and the bytes that were read."""

    files: PartitionFiles
    topic: str = ""
    findings: list[Finding] = field(default_factory=list)
    entries: int = 0
    size: int = 0


def check_owner(directory: InspectedDirectory) -> list[Finding]:
    """What is wrong with the data directory itself."""
    found: list[Finding] = []
    if directory.wrong:
        repair = (
            "the next start of the broker makes it anew, and has each replica catch up under a new log id; a broker "
            "that stands alone asks you to move the file away first"
        )
        found.append(Finding("damaged", directory.path / "broker.json", directory.wrong, repair))
    for name in directory.strangers:
        left_over = name.endswith(".deleted")
        what = "a partition whose removal was interrupted" if left_over else "this is no partition's directory"
        repair = "the next start of the broker removes it" if left_over else "brokers leave it as it is"
        found.append(Finding("note", directory.path / "partitions" / name, what, repair))
    return found


def check_partition(files: PartitionFiles, progress: Callable[[int], None] = lambda _bytes: None) -> Checked:
    """Everything of one partition. `progress` is told the bytes of segments that are done. Nothing of the partition
    makes it raise."""
    checked = Checked(files)
    _Check(files, checked, progress).run()
    return checked


class _Check:
    """Owns what is known so far while one partition is checked."""

    def __init__(self, files: PartitionFiles, checked: Checked, progress: Callable[[int], None]) -> None:
        self._files = files
        self._checked = checked
        self._progress = progress
        self._identity: LogIdentity | None = None
        self._mark: int | None = None
        self._last = 0
        self._epoch = 0
        self._certain = True  # that `_last` is the last entry of the log so far
        self._sealed: set[Path] = set()  # segments that were noted as such
        self._broken = False  # behind the first damage in the segments: a broker goes no further

    def run(self) -> None:
        self._check_identity()
        self._check_mark()
        segments = self._check_snapshot()
        for segment in segments:
            if len(self._checked.findings) >= FINDINGS_MAX:
                self._add("unchecked", segment.path, "too much is damaged before: it was not looked at")
                break
            self._check_segment(segment, last=segment is segments[-1])
        self._check_end(segments)
        for name in self._files.strangers:
            self._add(
                "note", self._files.path / name, "storage gives no file this name for long", "brokers do not read it"
            )

    def _add(
        self,
        kind: Kind,
        path: Path,
        what: str,
        repair: str = "",
        position: int | None = None,
        end: int | None = None,
        entries: tuple[int, int | None] | None = None,
    ) -> None:
        self._checked.findings.append(Finding(kind, path, what, repair, position, end, entries))

    # -------------------------------------------------------------- the small files

    def _check_identity(self) -> None:
        path = self._files.path / IDENTITY_FILE_NAME
        try:
            identity = self._files.identity()
        except StorageFailed as error:
            self._add("damaged", path, str(error), _ANOTHER_LOG)
            return
        if identity is None:
            if self._files.segments or self._files.has_snapshot:
                self._add("damaged", path, "it is missing beside segments", _ANOTHER_LOG)
            return
        self._identity, self._checked.topic = identity, identity.topic
        if identity.durability not in _ON_DISK:
            repair = f"write {' or '.join(_ON_DISK)} there, as the topic has it"
            self._add(
                "damaged", path, f"it names a durability that there is not: {quoted(identity.durability)}", repair
            )
        if identity.unknown:
            what = (
                f"it has keys that this version does not know: {', '.join(map(quoted, json.loads(identity.unknown)))}"
            )
            self._add("note", path, what, "nothing is wrong if a newer version wrote them")
        if identity.cut is not None:
            what = f"a stop interrupted what a broker was doing here: {identity.cut.reason}"
            self._add("note", path, what, "the next start of the broker finishes it")

    def _check_mark(self) -> None:
        path = self._files.path / MARK_FILE_NAME
        try:
            data = self._files.mark()
            self._mark = self._files.flushed()
        except (OSError, StorageFailed) as error:
            self._add("damaged", path, str(error), "remove it: the next start of the broker makes it anew")
            return
        if self._mark is not None or self._identity is None:
            return
        repair = "the next start of the broker goes on without it, and makes it anew"
        if data:
            self._add("damaged", path, "its checksum does not hold", repair, 0, len(data))
        elif self._identity.clean:
            what = "it is missing or empty, although the log was stopped cleanly"
            self._add("damaged", path, what, repair)
        else:
            self._add("note", path, "it is missing or empty, as a loss of power may leave it", repair)

    def _check_snapshot(self) -> list[Segment]:
        """The segments that are not in it."""
        path, segments = self._files.path / SNAPSHOT_FILE_NAME, list(self._files.segments)
        try:
            snapshot = read_snapshot(self._files)
        except CorruptBatch as error:
            if segments and segments[0].first_index == 1:
                self._add("damaged", path, str(error), "it is not needed, for the journal is whole")
            else:
                self._add("damaged", path, str(error), _ALL_FROM_THE_LEADER)
                self._last, self._certain = (segments[0].first_index - 1 if segments else 0), False
            return segments
        except Altered as error:
            self._add("altered", path, str(error), _ALL_FROM_THE_LEADER)
            self._last, self._certain = (segments[0].first_index - 1 if segments else 0), False
            return segments
        except StorageFailed as error:  # of a newer version, or not to be opened
            if isinstance(error, KeyAbsent) and self._files.keys is None:
                what = (
                    f"it is sealed with key {quoted(error.key_id)}: its checksum holds, and its content is not verified"
                )
                self._add("note", path, what, _GIVE_THE_KEY)
                self._last, self._certain = (segments[0].first_index - 1 if segments else 0), False
                return segments
            repair = "let it be read, or start the TritonMQ version that wrote it if that is a newer one"
            self._add("unchecked", path, str(error), repair)
            self._last, self._certain = (segments[0].first_index - 1 if segments else 0), False
            return segments
        if snapshot is None:
            return segments
        self._last, self._epoch = snapshot.last_index, snapshot.last_epoch
        for segment in segments:
            if segment.first_index <= snapshot.last_index:
                what = f"the snapshot up to entry {snapshot.last_index} stands for it"
                self._add("note", segment.path, what, "the next start of the broker removes it")
        return [segment for segment in segments if segment.first_index > snapshot.last_index]

    # -------------------------------------------------------------- segments

    def _check_segment(self, segment: Segment, *, last: bool) -> None:
        if segment.first_index != self._last + 1:
            if self._certain or segment.first_index <= self._last:
                what = f"it begins at entry {segment.first_index}, what is before it ends at {self._last}"
                missing = (self._last + 1, segment.first_index - 1) if segment.first_index > self._last else None
                self._add("damaged", segment.path, what, _FROM_THE_LEADER, 0, segment.size, missing)
                self._broken = True
            self._last = segment.first_index - 1
        self._certain = True
        done = self._checked.size
        try:
            for piece in walk(segment, self._files.place, self._epoch, self._files.keys):
                if isinstance(piece, Sealed):
                    self._take_sealed(segment, piece)
                elif isinstance(piece, Bad):
                    self._judge(segment, piece, last=last)
                    if len(self._checked.findings) >= FINDINGS_MAX:
                        break
                else:
                    self._take(piece)
                self._checked.size = done + piece.end
                self._progress(self._checked.size)
        except (KeyAbsent, WrongKey) as error:
            self._add("unchecked", segment.path, str(error), _GIVE_THE_KEY)
            self._certain = False
        except Altered as error:
            self._add("altered", segment.path, str(error), _ALL_FROM_THE_LEADER, self._checked.size - done)
            self._certain = False
        except StorageFailed as error:
            self._add("damaged", segment.path, str(error), _FROM_THE_LEADER)
            self._certain, self._broken = False, True

    def _take(self, frame: Frame) -> None:
        self._last, self._epoch = frame.entry.index, frame.entry.leader_epoch
        self._certain = True
        self._checked.entries += 1

    def _take_sealed(self, segment: Segment, sealed: Sealed) -> None:
        if segment.path not in self._sealed:
            self._sealed.add(segment.path)
            what = f"it is sealed with key {quoted(sealed.key_id)}: its checksums are verified, its seals are not"
            self._add("note", segment.path, what, _GIVE_THE_KEY)
        self._last, self._certain = sealed.index, True
        self._checked.entries += 1

    def _judge(self, segment: Segment, bad: Bad, *, last: bool) -> None:
        if bad.spare:
            repair = "`tritonmq keys rewrap` writes it anew, from the other one"
            self._add("damaged", segment.path, bad.reason, repair, bad.position, bad.end)
            return
        self._certain = False
        until = bad.following - 1 if bad.following else None
        place = (bad.position, bad.end, (bad.next_index, until))
        if bad.newer:
            repair = "start the TritonMQ version that wrote it, or a newer one"
            self._add("unchecked", segment.path, bad.reason, repair, *place)
            self._last = bad.next_index
            return
        reason = self._why_damaged(bad, last=last)
        if reason:
            self._add("damaged", segment.path, reason, _FROM_THE_LEADER, *place)
            self._broken = True
        else:
            repair = "the next start of the broker cuts it off; nobody was promised what it holds"
            self._add("torn", segment.path, f"a torn tail, as a crash leaves it: {bad.reason}", repair, *place)
        if bad.incomplete:
            what = "what is behind was not searched to its end: too much in it looks like an entry"
            self._add("unchecked", segment.path, what, "", bad.position, bad.end)

    def _why_damaged(self, bad: Bad, *, last: bool) -> str:
        """By the rules of recovery; empty for a torn tail."""
        identity = self._identity
        clean = identity is not None and identity.clean
        rebooted = identity is not None and identity.boot_id != boot_id()
        lossy = identity is not None and identity.durability != "fsync" and rebooted and not clean
        if self._broken:  # all behind the first bad place goes aside with it
            return bad.reason
        judged = damage_by_the_mark(
            bad.reason,
            bad.next_index,
            self._mark,
            whole=bad.whole,
            known=last and not bad.unreadable,
            clean=clean,
            lossy=lossy,
        )
        if judged is not None:
            return judged
        return f"{bad.reason}; good entries follow, from {bad.following} on" if bad.following else ""

    def _check_end(self, segments: Sequence[Segment]) -> None:
        """Entries that were noted as synced, and are not there."""
        if self._mark is None or self._mark <= self._last or self._broken:
            return
        path = segments[-1].path if segments else self._files.path
        what = f"the log ends at entry {self._last}, but had been flushed up to {self._mark}"
        end = segments[-1].size if segments else None
        self._add("damaged", path, what, _FROM_THE_LEADER, end, end, (self._last + 1, self._mark))


def is_damage(findings: Sequence[Finding]) -> bool:
    """Whether it may not be relied on that all is there."""
    return any(each.kind in ("damaged", "altered", "unchecked") for each in findings)
