"""Which offsets a leader's uncommitted entries will have, if it lives to commit them: what acks=leader is answered
with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mq_broker.core.entries import Append, Entry, offsets_given
from mq_broker.core.messages import RequestId, Wait
from mq_broker.core.replication.replica_state import Shared


class ChosenOffsets:
    """Owns the offset behind all that is in the tail, and those of the batches in it that somebody wants to know.

    A leader that has just taken up its role does not know the end of its log yet (rule 3): until `count` nothing is
    chosen.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._end: int | None = None
        self._wanted: dict[int, int] = {}  # by index

    def count(self, waiting: Mapping[int, Sequence[tuple[RequestId, Wait]]]) -> None:
        """The end of the log is known now. `waiting`: by index, who waits for that entry, and for what."""
        self._wanted.clear()
        self._end = self._shared.machine.next_offset
        for entry in self._shared.log.tail():
            self.add(entry, wanted=any(wait is Wait.WRITTEN for _, wait in waiting.get(entry.index, ())))

    def recount(self, waiting: Mapping[int, Sequence[tuple[RequestId, Wait]]]) -> None:
        """The tail was cut."""
        if self._end is not None:
            self.count(waiting)

    def add(self, entry: Entry, *, wanted: bool) -> None:
        """The entry is the last of the tail now."""
        if self._end is None:
            return
        if wanted and isinstance(entry.operation, Append):
            self._wanted[entry.index] = self._end
        # No publish is admitted but of what is staged for it, and nothing takes that from it now.
        self._end += offsets_given(entry, self._shared.machine.staged_rows)

    def take(self, index: int) -> int:
        """The batch's first offset, which nobody will ask for again; -1 if none was chosen."""
        return self._wanted.pop(index, -1)
