"""A follower: takes entries from the leader of the highest epoch, acknowledges what is both flushed and proved to
match."""

from __future__ import annotations

from mq_broker.core.entries import Entry, EpochStart
from mq_broker.core.messages import AppendAck, AppendEntries, Install, InstallSnapshot, Send, Truncate, WriteEntries
from mq_broker.core.replication.replica_state import Shared

_BELOW_BASE_MAX = 4
"""A leader that looks for agreement before this journal's beginning is told where that is; one that goes on there lacks
it. What it sent before it was told may come for as long as a slow link takes: one message counts in `silence_ms`."""


class Follower:
    """Owns what a follower knows of its leader. `leader` 0: nobody has spoken in this epoch yet.

    Invariant: `matched` is the last index that a message of this epoch proved to be the leader's too; it is what may be
    acknowledged and committed, never the end of the log (rule 2, traps 10 and 25).
    """

    def __init__(self, shared: Shared, leader: int = 0) -> None:
        self._shared = shared
        self.leader = leader
        self.matched = 0
        self.heard_ms = shared.now_ms
        self._sequence = 0
        self._leader_high_watermark = 0
        self._acknowledged = -1
        self._ack_due = False
        self._below_base = 0
        self._newest_below_base = 0
        self._counts_again_ms = shared.now_ms

    @property
    def at_rest(self) -> bool:
        """It has, flushed and applied, all that its leader is known to have, and has said so."""
        shared = self._shared
        said = self._acknowledged == self.matched and not self._ack_due
        return said and self.leader in shared.live and self.matched == shared.log.last_index == shared.high_watermark

    def append(self, message: AppendEntries) -> None:
        """A message of the current epoch, from its leader."""
        shared, log = self._shared, self._shared.log
        self.leader = message.leader
        self.heard_ms = shared.now_ms
        if log.epoch_at(message.prev_index) != message.prev_epoch:
            self._conflict(message)
            return
        self._sequence = max(self._sequence, message.sequence)
        self._below_base = 0
        fresh = 0
        for entry in message.entries:
            if log.epoch_at(entry.index) == entry.leader_epoch:
                fresh += 1
                continue
            if entry.index <= log.last_index:
                if entry.index <= shared.high_watermark:
                    shared.audit(
                        f"the leader of epoch {message.leader_epoch} would cut committed entry {entry.index}: refused",
                        alarm=True,
                    )
                    # Unless the partition was recovered from another log: the node says so (rule 15)
                    shared.read_node()
                    return
                # It may say that the partition was recovered elsewhere: what is here is kept aside then
                if shared.node is None or self._recovered_since(message.entries[fresh:]):
                    shared.read_node()
                    return
                shared.audit(f"cut {log.last_index - entry.index + 1} entries above {entry.index - 1} on a conflict")
                log.truncate(entry.index - 1)
                shared.emit(Truncate(entry.index - 1))
            break
        new = message.entries[fresh:]
        if new and new[-1].leader_epoch > log.last_epoch and self._recovered_since(new):
            self._has_up_to(new[0].index - 1)
            shared.prove(self.matched)
            shared.read_node()  # which says what is to become of this log; nothing of its new life is acknowledged
            return
        if new:
            for entry in new:
                log.append(entry)
            shared.emit(WriteEntries(new, message.bodies[fresh:]))
        end = message.entries[-1].index if message.entries else message.prev_index
        self.matched = max(self.matched, end)
        shared.prove(self.matched)
        self._leader_high_watermark = max(self._leader_high_watermark, message.high_watermark)
        self.advance()
        if not new:
            self._ack_due = True  # else the flush of what is new brings the answer: one for both

    def _recovered_since(self, entries: tuple[Entry, ...]) -> bool:
        """The partition was recovered, from a log of which it is not known whether it is this one's (rule 15). Once an
        entry of the new life is acknowledged, this log may be counted and must not be put aside any more."""
        shared = self._shared
        node = shared.node.state if shared.node is not None else None
        if node is not None and node.leader_epoch >= shared.epoch and node.recovery <= shared.recovery:
            return False  # what was read has said what becomes of this log
        if node is not None and node.recovery > shared.recovery:
            return True  # it was read while nobody led, and not every message says so
        starts = (entry.operation for entry in entries if isinstance(entry.operation, EpochStart))
        return any(start.recovery > shared.recovery for start in starts)

    def advance(self) -> None:
        """min(the leader's, matched), and no further than this disk: what the disk may yet refuse is not applied."""
        shared = self._shared
        shared.commit_to(max(shared.high_watermark, min(self._leader_high_watermark, self.matched, shared.log.flushed)))

    def _conflict(self, message: AppendEntries) -> None:
        """The entry before is not here: say where the logs could last agree; cut nothing yet."""
        shared, log = self._shared, self._shared.log
        # What a snapshot stands for is committed: any leader has it, and need not look for agreement before its end.
        hint = max(log.last_index_up_to(message.prev_epoch, min(message.prev_index, log.last_index)), log.base_index)
        if message.prev_index < log.base_index and message.sequence > max(self._sequence, self._newest_below_base):
            self._newest_below_base = message.sequence
            if shared.now_ms >= self._counts_again_ms:
                self._counts_again_ms = shared.now_ms + shared.settings.silence_ms
                self._below_base += 1
        if log.base_index <= message.prev_index <= shared.high_watermark or self._below_base > _BELOW_BASE_MAX:
            shared.audit(f"the leader of epoch {message.leader_epoch} lacks what is committed here", alarm=True)
            shared.read_node()  # unless the partition was recovered from another log: the node says so (rule 15)
        elif self._recovered_since(message.entries):
            shared.read_node()
        shared.emit(
            Send(
                message.leader,
                AppendAck(
                    shared.me.broker,
                    shared.me.incarnation,
                    shared.me.log_id,
                    shared.epoch,
                    min(log.flushed, self.matched),
                    self.matched,
                    message.sequence,
                    conflict=True,
                    hint_index=hint,
                    hint_epoch=log.epoch_at(hint),
                ),
            )
        )

    def install(self, message: InstallSnapshot) -> bool:
        """The leader's journal begins after what this log lacks. Returns whether this replica is over (rule 13).

        Not if the log has that entry, nor if it is named in sync: then it has all that is committed, and a snapshot is
        of nothing else.
        """
        shared, log, snapshot = self._shared, self._shared.log, message.snapshot
        self.leader = message.leader
        self.heard_ms = shared.now_ms
        self._sequence = max(self._sequence, message.sequence)
        if snapshot is None:
            return False
        if log.epoch_at(snapshot.last_index) == snapshot.last_epoch:
            self._has_up_to(snapshot.last_index)
            return False
        node = shared.node.state if shared.node is not None else None
        if node is None or node.leader_epoch < message.leader_epoch or node.recovery > shared.recovery:
            # Nor before it is known what is named, which recovery the new log belongs to, and whether what this log's
            # own snapshot stands for is of use
            shared.read_node()
            return False
        if snapshot.last_index <= log.base_index:
            self._has_up_to(snapshot.last_index)
            return False
        if shared.my_member in node.isr:
            shared.audit(
                f"a snapshot up to {snapshot.last_index} was sent to a log that is named in sync, as last read: refused"
            )
            shared.read_node()  # the leader may have dropped it since
            return False
        shared.audit(f"begin anew with a snapshot up to entry {snapshot.last_index}: the log ended at {log.last_index}")
        shared.emit(Install(snapshot, shared.recovery))
        return True

    def _has_up_to(self, index: int) -> None:
        self.matched = max(self.matched, index)
        self._ack_due = True

    def disk_refused(self) -> None:
        """The end of the log did not fit the disk: what was matched is so no longer."""
        self.matched = min(self.matched, self._shared.log.last_index)
        self._ack_due = True

    def turn_ended(self) -> None:
        """One acknowledgement for all that was appended or flushed in this turn."""
        shared = self._shared
        acknowledged = min(shared.log.flushed, self.matched)
        if self.leader == 0 or not (self._ack_due or acknowledged != self._acknowledged):
            return
        self._ack_due = False
        self._acknowledged = acknowledged
        shared.emit(
            Send(
                self.leader,
                AppendAck(
                    shared.me.broker,
                    shared.me.incarnation,
                    shared.me.log_id,
                    shared.epoch,
                    acknowledged,
                    self.matched,
                    self._sequence,
                ),
            )
        )
