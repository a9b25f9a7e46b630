"""Beside an open journal on disk: its checkpoints, and the scrub of what opening it did not read.

**A checkpoint** is made of what the shell has derived, at an entry that is committed and applied. It is stored by a
thread, once the journal has synced that entry and noted so. Nothing below it is cut from then on: what is committed is
cut by nobody but who gives the log a new id, and a log with another id has no checkpoint (checkpoints.py). So a journal
that was found damaged, or whose sync failed, stores none any more: it is read from its beginning at its next opening.

**The scrub** reads the entries that a checkpoint spared the opening, in order, frame by frame, by the same rules: each
checksum, each seal, indexes without a gap, epochs as the checkpoint has them. What is bad has the same consequence as
what is bad when it is read: a new log id, and with it a reading of all.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mq_broker.measured import SCRUB_DAMAGE, SCRUBBED_BYTES
from mq_broker.storage.codec.checkpoint import FILE_NAME
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.interface import Derived
from mq_broker.storage.journal.checkpoints import Layout, TooLarge, store_checkpoint
from mq_broker.storage.journal.key_ahead import KeyAhead
from mq_broker.storage.journal.recovered import Recovered
from mq_broker.storage.journal.recovery import frames_in
from mq_broker.storage.journal.segments import LogFiles, segment_path
from mq_broker.storage.sealed import Altered, DataKey, unit_start
from mq_protocol.errors import CorruptBatch, StorageFailed

CHECKPOINT_COST: Final = 64 << 20
"""So much is read at a start, at most, where a checkpoint is small: bytes, and `ENTRY_COST` for each entry."""

ENTRY_COST: Final = 1 << 10
"""An entry takes a start as long as so many bytes do, beside its own: it is decoded and applied."""

GROWTH: Final = 4
"""A checkpoint is written anew once the journal grew by so many times its size: what is written stays a part of what is
stored."""

WORTH_COST: Final = 256 << 10
"""What is less than this is read as quickly as a checkpoint is written."""

_UNKNOWN: Final = 1 << 64

AGAIN_S: Final = 60.0
TOO_LARGE_AGAIN_S: Final = 3600.0
"""It is built before its size is known."""

SYNCED_DEADLINE_S: Final = 30.0
_POLL_S: Final = 0.05

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Damage:
    """What a scrub found. `altered`: it was somebody without the key."""

    segment: int
    position: int
    reason: str
    altered: Altered | None = None


class KeepingOfJournal:
    """Owns where the last checkpoint of one journal is, and how far its scrub has come. Loop only.

    `layout` is the journal as the loop knows it, `ahead` has the key that seals a checkpoint. `found` is told of
    damage.
    """

    def __init__(
        self,
        log: LogFiles,
        place: Place,
        recovered: Recovered,
        layout: Callable[[], Layout],
        ahead: KeyAhead | None,
        at_work: Callable[[], AbstractContextManager[None]],
        found: Callable[[Damage], object],
    ) -> None:
        self._log = log
        self._log_id = log.identity.log_id
        self._place = place
        self._files = log.files
        self._layout = layout
        self._ahead = ahead
        self._at_work = at_work
        self._found = found
        self._over = False
        checkpoint = recovered.checkpoint
        self._kept = self._spared = checkpoint.snapshot.last_index if checkpoint is not None else 0
        log.checkpointed = self._kept or _UNKNOWN  # there may be one that did not fit
        self._size = 0
        self._scrubbed = recovered.base_index
        self._again_s = 0.0
        self._storing: asyncio.Task[bool] | None = None

    def cut(self, last_index: int) -> None:
        """The journal ends there now."""
        self._kept, self._spared = min(self._kept, last_index), min(self._spared, last_index)

    def end(self) -> None:
        """The log is another now, or is damaged or altered: nothing more is kept of it, and its next opening reads all,
        whether or not the disk takes its new id."""
        if not self._over:
            self._over = True
            self._forget()

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            self._files.remove(self._log.directory / FILE_NAME)

    async def settled(self, seconds: float) -> None:
        """Returns once nothing is being stored any more."""
        if self._storing is not None:
            await asyncio.wait({self._storing}, timeout=seconds)

    # -------------------------------------------------------------- checkpoints

    @property
    def due(self) -> float:
        if self._over or self._storing is not None or time.monotonic() < self._again_s:
            return 0.0
        return self._cost / max(CHECKPOINT_COST, GROWTH * self._size)

    @property
    def gain(self) -> int:
        cost = 0 if self._over else self._cost
        return cost if cost >= min(WORTH_COST, CHECKPOINT_COST) else 0

    @property
    def _cost(self) -> int:
        """What a start would have to read above the last checkpoint."""
        layout = self._layout()
        at = max(self._kept - layout.base, 0)
        return layout.ends[-1] - layout.ends[at] + (len(layout.ends) - 1 - at) * ENTRY_COST

    async def keep(self, derived: Derived) -> bool:
        layout, last_index = self._layout(), derived.snapshot.last_index
        newest = layout.base + len(layout.ends) - 1
        if self._over or self._storing is not None or not max(layout.base, self._kept) < last_index <= newest:
            return False
        self._log.checkpointed = max(self._log.checkpointed, last_index)
        work = self._keep(derived, layout.up_to(last_index))
        storing = self._storing = asyncio.get_running_loop().create_task(work)
        storing.add_done_callback(self._stored)  # whoever asked may be gone
        return await asyncio.shield(storing)

    def _stored(self, storing: asyncio.Task[bool]) -> None:
        self._storing = None

    async def _keep(self, derived: Derived, layout: Layout) -> bool:
        last_index = derived.snapshot.last_index
        deadline = time.monotonic() + SYNCED_DEADLINE_S
        while self._log.synced < last_index:
            if self._over or self._log.closed or time.monotonic() > deadline:
                return self._not_kept("it is not synced yet")
            await asyncio.sleep(_POLL_S)
        try:
            size = await asyncio.to_thread(self._store, derived, layout)
        except TooLarge as error:
            return self._not_kept(str(error), TOO_LARGE_AGAIN_S)
        except (OSError, CorruptBatch, StorageFailed) as error:
            return self._not_kept(str(error))
        if not size:
            return self._not_kept("the mark is behind")
        if self._over:  # meanwhile
            self._forget()
            return False
        self._kept, self._size = last_index, size
        return True

    def _not_kept(self, reason: str, again_s: float = AGAIN_S) -> bool:
        self._again_s = time.monotonic() + again_s
        _logger.info("%s: no checkpoint now (%s); its next start reads more", self._log.directory, reason)
        return False

    def _store(self, derived: Derived, layout: Layout) -> int:
        """In a thread."""
        with self._at_work():
            key = self._ahead.latest if self._ahead is not None else None
            return store_checkpoint(self._log.directory, self._place, self._files, self._log_id, layout, derived, key)

    # -------------------------------------------------------------- the scrub

    @property
    def unscrubbed_bytes(self) -> int:
        if self._over or self._spared <= self._scrubbed:  # of most of thousands, whom a scrape asks at once
            return 0
        layout = self._layout()
        if self._spared <= layout.base:
            return 0
        return layout.ends[self._spared - layout.base] - layout.ends[max(self._scrubbed - layout.base, 0)]

    async def scrub(self, bytes_max: int) -> int:
        if not self.unscrubbed_bytes:
            return 0
        layout = self._layout()
        first = max(self._scrubbed, layout.base) + 1
        n = bisect_right(layout.segments, first, key=lambda segment: segment[0]) - 1
        segment, start = layout.segments[n]
        last = min(self._spared, layout.segments[n + 1][0] - 1 if n + 1 < len(layout.segments) else self._spared)
        limit = layout.ends[first - 1 - layout.base] + bytes_max
        fits = layout.base + bisect_right(layout.ends, limit, first - layout.base, last - layout.base + 1) - 1
        last = max(first, fits)
        piece = _Piece(
            segment_path(self._log.directory, segment),
            segment,
            first,
            last,
            self._at(layout, segment, start, first - 1),
            self._at(layout, segment, start, last),
            [epoch for at, epoch in layout.epochs if at <= first][-1],
            layout.keys.get(segment),
        )
        damage = await asyncio.to_thread(self._verify, piece)
        if self._over or self._log.closed or self._layout().base >= first:
            return piece.end - piece.start  # shortened meanwhile, or closed: what was read says nothing
        if damage is not None:
            SCRUB_DAMAGE.add()
            self.end()
            self._found(damage)
            return piece.end - piece.start
        SCRUBBED_BYTES.add(n=piece.end - piece.start)
        self._scrubbed = last
        if not self.unscrubbed_bytes:
            _logger.info("%s: all that its opening did not read is verified", self._log.directory)
        return piece.end - piece.start

    @staticmethod
    def _at(layout: Layout, segment: int, start: int, index: int) -> int:
        """Where the entry after that one begins in the segment's file."""
        frames_bytes = layout.ends[index - layout.base] - start
        return unit_start(frames_bytes, index + 1 - segment, sealed=segment in layout.keys)

    def _verify(self, piece: _Piece) -> Damage | None:
        """In a thread."""
        at, index = piece.start, piece.first
        try:
            with self._at_work():
                fd = os.open(piece.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    epoch = piece.epoch
                    for entry, end in frames_in(
                        self._files, fd, piece.end, self._place, piece.segment, piece.key, piece.start
                    ):
                        if entry.index != index or entry.leader_epoch < epoch:
                            reason = f"entry {entry.index} of epoch {entry.leader_epoch} lies where {index} belongs"
                            return Damage(piece.segment, at, reason)
                        at, index, epoch = end, index + 1, entry.leader_epoch
                finally:
                    os.close(fd)
        except Altered as error:
            return Damage(piece.segment, at, str(error), error)
        except CorruptBatch as error:
            return Damage(piece.segment, at, str(error))
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOENT):
                raise StorageFailed(f"{piece.path} cannot be read ({error}): it is tried again") from error
            return Damage(piece.segment, at, str(error))
        if index != piece.last + 1:
            return Damage(piece.segment, at, f"it ends at entry {index - 1}, and had {piece.last}")
        return None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Entries `first .. last` of a segment, from byte `start` of its file to byte `end`."""

    path: Path
    segment: int
    first: int
    last: int
    start: int
    end: int
    epoch: int
    key: DataKey | None
