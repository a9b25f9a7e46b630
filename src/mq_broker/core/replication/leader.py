"""A leader: admits operations, sends entries, counts acknowledgements, answers.

Everything that waits for an answer is held here and ended here: by the commit of its entry, or as unknown when the role
ends (rule 8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from mq_broker.core.entries import NO_UUID, Append, Decide, Entry, EpochStart, Give, Operation, offsets_given
from mq_broker.core.machine.admission import Admit, Answer, WaitFor, judge
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    Decided,
    DecisionCommitted,
    DiskRefused,
    Done,
    InstallSnapshot,
    NodeState,
    Propose,
    Refused,
    Reply,
    RequestId,
    Send,
    Truncate,
    Wait,
    WriteEntries,
)
from mq_broker.core.replication.membership import Membership
from mq_broker.core.replication.progress import Progress
from mq_broker.core.replication.replica_state import Shared
from mq_broker.core.replication.standing_back import StandingBack
from mq_protocol.errors import DiskFull, NotEnoughReplicas, NotLeader, OutcomeUnknown, Overloaded, TritonMQError

_SNAPSHOT_PATIENCE = 4
"""A snapshot is larger than what is resent otherwise, and whoever takes it is busy writing it."""


class ChosenOffsets:
    """Which offsets a leader's uncommitted entries will have, if it lives to commit them: what acks=leader is answered
    with. Owns the offset behind all that is in the tail, and those of the batches in it that somebody wants to know.

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


class Leader:
    """Owns one leadership: the followers' progress, the in-sync set, the waiting requests."""

    def __init__(self, shared: Shared, state: NodeState) -> None:
        self._shared = shared
        self.membership = Membership(shared, state)
        self.followers = {
            broker: Progress(broker, shared.log.last_index + 1, shared.now_ms)
            for broker in dict.fromkeys((*shared.settings.replicas, *(broker for broker, _ in state.isr)))
            if broker != shared.me.broker
        }
        self._overlay = Overlay(shared.log.tail())
        self._waiting: dict[int, list[tuple[RequestId, Wait]]] = {}
        self._offsets = ChosenOffsets(shared)
        self._deferred: dict[int, list[Propose]] = {}
        self._deferred_count = 0
        self._doubtful: deque[tuple[int, Propose]] = deque()  # with the last message sent before it was asked
        self._acknowledging = True
        self._sequence = 0
        self._sent_last = 0  # ever, to anybody: what is once sent may be anywhere, even if it is to be sent again
        self._written = shared.log.flushed
        self._awake_ms = shared.now_ms
        self._commit_moved_ms = shared.now_ms
        self.standing_back = StandingBack(shared, self.membership, self.followers)
        start = EpochStart(shared.me.broker, state.offset_floor, state.recovery)
        self.epoch_start = self._append(Propose(0, start, shared.log.last_timestamp_us), start)

    @property
    def last_sent(self) -> tuple[int, int]:
        """The last index that a follower of this epoch can have (a snapshot is of what is applied), and the last
        message."""
        return max(self._sent_last, self._shared.log.applied), self._sequence

    @property
    def ready(self) -> bool:
        """The epoch start is committed: the end of the log is known (rule 3)."""
        return self._shared.high_watermark >= self.epoch_start

    @property
    def trimming(self) -> bool:
        """Records are about to be dropped: the entry that says so is not committed yet."""
        return self._overlay.trims > 0

    @property
    def at_rest(self) -> bool:
        """Nobody waits for an answer, and every follower has all there is and knows it, or cannot be had."""
        shared = self._shared
        busy = self._doubtful or self.standing_back.waiting  # who waits for an entry waits for the high watermark
        if busy or not self.ready or not self._acknowledging or not shared.assigned:
            return False
        settled = self.membership.at_rest and shared.log.last_index == shared.high_watermark
        return settled and all(map(self._has_all, self.followers.values()))

    def _has_all(self, progress: Progress) -> bool:
        shared = self._shared
        complete = progress.acknowledged >= shared.log.last_index
        named = progress.broker in self.membership.brokers()
        if not progress.connected or progress.broker not in shared.live:
            return complete or not named  # who is not reached is news when it is again
        return complete and named and not progress.probing and progress.sent_high_watermark >= shared.high_watermark

    # ------------------------------------------------------------------ requests

    def propose(self, request: Propose, *, confirmed: bool = False) -> None:
        """`confirmed`: every member was heard of, as a follower of this leader, since it was asked."""
        shared = self._shared
        if (error := self._resigns()) is not None:
            self._refuse(request, error)
            return
        if not self.ready and request.uuid == NO_UUID:
            self._defer(self.epoch_start, request)  # judged by what is committed, once that is known
            return
        verdict = judge(request, shared.machine, self._overlay, shared.log.base_index + 1)
        match verdict:
            case Answer(of_absence=True) if not confirmed:
                self._doubt(request)
            case Answer(result):
                shared.emit(Reply(request.request, result))
            case WaitFor(index):
                self._defer(index, request)
            case Admit(operation):
                error = self._unavailable(request.wait)
                if error is not None:
                    self._refuse(request, error)
                    return
                index = self._append(request, operation)
                if request.wait is Wait.NOTHING:
                    shared.emit(Reply(request.request, Done(index)))
                else:
                    self._waiting.setdefault(index, []).append((request.request, request.wait))

    def _doubt(self, request: Propose) -> None:
        """It would be refused for good, by what is not here: be sure first that this leader still led when it was
        asked."""
        if len(self._doubtful) >= self._shared.settings.tail_entries_max:
            self._refuse(
                request, OutcomeUnknown(f"{self._shared.name}: too many requests wait to be refused; ask again later")
            )
            return
        self._doubtful.append((self._sequence, request))

    def _settle_doubts(self) -> None:
        if not self._doubtful:
            return
        heard = [
            progress.heard_sequence if progress is not None and progress.log_id == log_id else 0
            for progress, log_id in (
                (self.followers.get(b), log_id)
                for b, log_id in self.membership.maximal()
                if b != self._shared.me.broker
            )
        ]
        while self._doubtful and all(sequence > self._doubtful[0][0] for sequence in heard):
            self.propose(self._doubtful.popleft()[1], confirmed=True)

    def _defer(self, index: int, request: Propose) -> None:
        """To be asked again once the entry at `index` is committed: soon, or never."""
        if self._deferred_count >= self._shared.settings.tail_entries_max:
            error = OutcomeUnknown(
                f"{self._shared.name}: too many requests wait for what is not committed yet; ask again later"
            )
            self._refuse(request, error)  # not "overloaded": its entry may be in the tail, and may yet be committed
            return
        self._deferred_count += 1
        self._deferred.setdefault(index, []).append(request)

    def _take_deferred(self, index: int) -> list[Propose]:
        requests = self._deferred.pop(index, [])
        self._deferred_count -= len(requests)
        return requests

    def _ask_again(self, index: int) -> None:
        for request in self._take_deferred(index):
            self.propose(request)

    def why_not(self) -> TritonMQError | None:
        """What any operation would be refused with now that waits for its commit and that nothing else is known
        against; None if it would be written at once."""
        if not self.ready:
            return NotLeader("this broker is taking up the leadership: ask again in a moment", 0, self._shared.epoch)
        return self._resigns() or self._unavailable(Wait.COMMITTED)

    def _resigns(self) -> TritonMQError | None:
        if not (self.standing_back.waiting or self.standing_back.resigning):
            return None
        return NotLeader("this broker is handing leadership over: ask again in a moment", 0, self._shared.epoch)

    def _unavailable(self, wait: Wait) -> TritonMQError | None:
        shared, settings = self._shared, self._shared.settings
        if wait is Wait.COMMITTED:
            alive = [b for b in self.membership.brokers() if b == shared.me.broker or b in shared.live]
            if len(alive) < settings.min_insync_replicas:
                return NotEnoughReplicas(
                    f"{shared.name} has {len(alive)} live in-sync replicas of the {settings.min_insync_replicas} that "
                    "min_insync_replicas asks for: start the missing brokers, or lower the setting"
                )
        if shared.log.tail_count >= settings.tail_entries_max or shared.log.tail_bytes >= settings.tail_bytes_max:
            return Overloaded(
                f"{shared.name} has {shared.log.tail_count} uncommitted entries: its followers are behind; ask again "
                "later"
            )
        return None

    def _refuse(self, request: Propose, error: TritonMQError) -> None:
        self._shared.emit(Reply(request.request, Refused(error)))

    def _append(self, request: Propose, operation: Operation) -> int:
        log = self._shared.log
        entry = Entry(
            log.last_index + 1,
            self._shared.epoch,
            max(request.timestamp_us, log.last_timestamp_us),
            operation,
            request.uuid,
            request.record_count,
            request.payload_bytes,
            request.decoded_bytes,
        )
        log.append(entry)
        self._overlay.add(entry)
        self._offsets.add(entry, wanted=request.wait is Wait.WRITTEN)
        self._shared.emit(WriteEntries((entry,), (request.body,)))
        return entry.index

    # ------------------------------------------------------------------ followers

    def acknowledged(self, ack: AppendAck) -> None:
        """An answer of this epoch."""
        shared, log = self._shared, self._shared.log
        progress = self.followers.get(ack.follower)
        if progress is None or not progress.hears(ack, shared.now_ms):
            return
        overtaken = ack.sequence < progress.heard_sequence
        progress.heard_sequence = max(progress.heard_sequence, ack.sequence)
        if ack.conflict:
            if overtaken or (ack.sequence < progress.last_sequence and progress.probing and progress.sent):
                return  # a newer message was answered, or the probe in flight will be
            agreed = log.last_index_up_to(ack.hint_epoch, ack.hint_index)
            progress.matched = max(min(progress.matched, agreed), progress.acknowledged)
            agreed = max(agreed, progress.matched)
            progress.lacks_base = agreed < log.base_index
            progress.step_back(max(agreed, log.base_index) + 1)
            return
        progress.answered(ack.sequence)
        progress.lacks_base = progress.lacks_base and ack.matched_index < log.base_index
        progress.probing = progress.probing and not ack.matched_index
        progress.matched = max(progress.matched, ack.matched_index)
        progress.next_index = max(progress.next_index, progress.matched + 1)
        progress.caught_up_to(ack.acknowledged_index, log.last_index, shared.now_ms)

    def peer_connected(self, broker: int, *, up: bool) -> None:
        progress = self.followers.get(broker)
        if progress is not None:
            progress.connected = up
            progress.rewind()

    def _send_to(self, progress: Progress) -> None:
        shared, log, settings = self._shared, self._shared.log, self._shared.settings
        if not progress.connected or progress.broker not in shared.live:
            progress.unreachable(log.last_index, shared.now_ms)
            return
        patience_ms = settings.resend_ms * (_SNAPSHOT_PATIENCE if progress.lacks_base else 1)
        if progress.sent and shared.now_ms - max(progress.last_sent_ms, progress.last_heard_ms) > patience_ms:
            progress.rewind()
        if progress.next_index <= log.base_index:
            # The journal was shortened meanwhile: see whether it has what is before
            progress.step_back(log.base_index + 1)
        if progress.lacks_base:
            if not progress.sent:
                self._send_snapshot(progress)
            return
        in_flight_max = 1 if progress.probing else settings.append_in_flight_max
        while progress.next_index <= log.last_index and len(progress.sent) < in_flight_max:
            last = log.range_end(progress.next_index, settings.append_entries_max, settings.append_bytes_max)
            self._send(progress, last)
        asked = progress.last_sequence <= max(
            self._doubtful[-1][0] if self._doubtful else -1, self.standing_back.last_before
        )
        if (asked or shared.now_ms - progress.last_sent_ms >= settings.heartbeat_ms) and len(
            progress.sent
        ) < in_flight_max:
            self._send(progress, progress.next_index - 1)

    def _send(self, progress: Progress, last: int) -> None:
        shared = self._shared
        self._sequence += 1
        self._sent_last = max(self._sent_last, last)
        previous = progress.next_index - 1
        message = AppendEntries(
            shared.me.broker,
            shared.me.incarnation,
            shared.epoch,
            previous,
            shared.log.epoch_at(previous),
            last,
            shared.high_watermark,
            self._sequence,
        )
        progress.sent_message(self._sequence, last, shared.now_ms, shared.high_watermark)
        shared.emit(Send(progress.broker, message))

    def _send_snapshot(self, progress: Progress) -> None:
        """It lacks what is no longer here as entries: it is to begin anew with the state that stands for them."""
        shared = self._shared
        self._sequence += 1
        progress.sent_message(self._sequence, shared.log.base_index, shared.now_ms, shared.high_watermark)
        shared.emit(
            Send(
                progress.broker, InstallSnapshot(shared.me.broker, shared.me.incarnation, shared.epoch, self._sequence)
            )
        )

    def replicas_changed(self) -> None:
        """Send to those that are new. One that is no longer a replica is counted until the node does not name it any
        more."""
        shared = self._shared
        for broker in shared.settings.replicas:
            if broker != shared.me.broker and broker not in self.followers:
                self.followers[broker] = Progress(broker, shared.log.last_index + 1, shared.now_ms)
        self._forget_removed()

    def _forget_removed(self) -> None:
        shared = self._shared
        named = {broker for broker, _ in self.membership.maximal()}
        for broker in [b for b in self.followers if b not in shared.settings.replicas and b not in named]:
            del self.followers[broker]

    # ------------------------------------------------------------------ the high watermark

    def _advance(self) -> None:
        """Lowest acknowledged index over the maximal ISR, the leader's own disk included (rule 4)."""
        shared, log = self._shared, self._shared.log
        lowest = log.last_index
        for broker, log_id in self.membership.maximal():
            if broker == shared.me.broker:
                lowest = min(lowest, log.flushed if log_id == shared.me.log_id else 0)
            else:
                progress = self.followers.get(broker)
                lowest = min(lowest, progress.acknowledged if progress is not None and progress.log_id == log_id else 0)
        if not self._acknowledging or lowest < self.epoch_start or lowest <= shared.high_watermark:
            return
        was_ready = self.ready
        self._commit_moved_ms = shared.now_ms
        while shared.high_watermark < lowest:
            index = shared.high_watermark + 1
            self._commit_one(index)
            # At once: so many may follow that what it waited for is past the window of `dedup_uuids_max` after them.
            self._ask_again(index)
        if not was_ready:
            self._offsets.count(self._waiting)
            shared.audit(f"leading epoch {shared.epoch}: committed up to {shared.high_watermark}")
            for known_key, known in shared.machine.transactions.items():
                if not known.finished:
                    decision = Decide(known_key, known.batch_id, known.run_id, known.row_count, known.manifest)
                    shared.emit(DecisionCommitted(decision))

    def _commit_one(self, index: int) -> None:
        shared = self._shared
        entry = shared.log.entry(index)
        operation = entry.operation
        known = shared.machine.transactions.get(operation.key) if isinstance(operation, Decide | Give) else None
        shared_ready = index > self.epoch_start
        [(entry, base_offset)] = shared.commit_to(index)
        self._overlay.remove(entry)
        self._offsets.take(index)
        already = known is not None and isinstance(operation, Decide) and known.batch_id == operation.batch_id
        if isinstance(operation, Decide) and operation.manifest and shared_ready:  # without one only the run is news
            shared.emit(DecisionCommitted(operation))
        for request, _ in self._waiting.pop(index, ()):
            if isinstance(operation, Decide):
                state = shared.machine.transactions[operation.key]
                shared.emit(Reply(request, Decided(state.row_count, already, state.finished)))
            else:
                placed = base_offset if shared.machine.next_offset > base_offset else -1
                former = known.owner if known is not None else ""
                shared.emit(Reply(request, Done(index, placed, entry.timestamp_us, former=former)))

    def flushed(self) -> None:
        """Answer acks=leader: it is on this disk, and where this leader has it. Offset -1 before it knows the end of
        its log."""
        shared = self._shared
        while self._written < shared.log.flushed:
            self._written += 1
            if not (waiting := self._waiting.get(self._written)):
                continue
            offset, timestamp_us = self._offsets.take(self._written), shared.log.entry(self._written).timestamp_us
            for request in [request for request, wait in waiting if wait is Wait.WRITTEN]:
                shared.emit(Reply(request, Done(self._written, offset, timestamp_us)))
            waiting[:] = [pair for pair in waiting if pair[1] is not Wait.WRITTEN]

    # ------------------------------------------------------------------ time, and the end of a turn

    def tick(self) -> None:
        shared, settings = self._shared, self._shared.settings
        self._time_passes()
        if not self._acknowledging:
            shared.read_node()  # the answer that came may have been to an older question: it must be known who wrote
        if shared.log.last_index == shared.high_watermark:
            self._commit_moved_ms = shared.now_ms
        elif shared.now_ms - self._commit_moved_ms > settings.leader_stuck_ms:
            self.standing_back.give_way()
        self._forget_removed()
        self.standing_back.leave_to_replicas()
        self.standing_back.step()

    def _time_passes(self) -> None:
        """After a gap in its own time every clock starts anew: it was this process that slept (rule 5, trap 31)."""
        shared = self._shared
        if shared.now_ms - self._awake_ms > shared.settings.replica_lag_ms_max // 2:
            for progress in self.followers.values():
                if progress.behind_since_ms is not None:
                    progress.behind_since_ms = shared.now_ms
            self._commit_moved_ms = shared.now_ms
        self._awake_ms = shared.now_ms

    def turn_ended(self) -> None:
        self._time_passes()
        self._advance()
        self._settle_doubts()
        self.standing_back.step()
        self.membership_changed()
        if self.standing_back.resigning:
            self._sequence = self.standing_back.finish(self._sequence)
        if not self.standing_back.done:
            for progress in self.followers.values():
                self._send_to(progress)

    def membership_changed(self) -> None:
        if not self.standing_back.resigning and self._acknowledging:
            # A log in memory ends with its process: whoever is about to stop drops nobody, or it might drop the last
            # that stays.
            leaving = self._shared.settings.volatile and self.standing_back.broker_stops
            self.membership.propose(self.followers, self.epoch_start, shrink=not leaving)

    def refused_by_node(self) -> None:
        """Rule 7: a refused compare-and-set means that someone else wrote. Acknowledge nothing until the node was
        read."""
        self._acknowledging = False

    def node_confirmed(self, state: NodeState) -> None:
        """The node was read and still names this leadership."""
        self._acknowledging = True
        self.membership.node_changed(state)

    # ------------------------------------------------------------------ the end of the role

    def hand_over(self, deadline_ms: int) -> None:
        """The broker stops: wait until then for a successor that has everything."""
        self.standing_back.hand_over(deadline_ms, self._sequence)

    def disk_refused(self, event: DiskRefused) -> bool:
        """Entries did not fit. Returns whether leadership can go on: only if nobody else was sent what is now gone."""
        shared, log = self._shared, self._shared.log
        if event.first_index > log.last_index:
            return True  # what it refused was cut already
        if self._sent_last >= event.first_index or event.first_index <= self.epoch_start:
            return False
        error = DiskFull(
            f"broker {shared.me.broker} is full: {shared.name} ({event.reason}): free some space; what is acknowledged "
            "stays"
        )
        for index in range(event.first_index, log.last_index + 1):
            for request, _ in self._waiting.pop(index, ()):
                shared.emit(Reply(request, Refused(error)))
            for deferred in self._take_deferred(index):
                shared.emit(Reply(deferred.request, Refused(error)))
        log.truncate(event.first_index - 1)
        shared.emit(Truncate(event.first_index - 1))
        self._overlay = Overlay(log.tail())
        self._offsets.recount(self._waiting)
        for progress in self.followers.values():
            progress.log_was_cut(log.last_index)
        return True

    def end(self, why: str) -> None:
        """The role ends: every waiting request ends as unknown (rule 8)."""
        shared = self._shared
        self.standing_back.ended()
        error = OutcomeUnknown(f"{shared.name}: {why} before this was committed; ask again with the same UUID")
        for index in sorted(self._waiting):
            for request, _ in self._waiting[index]:
                shared.emit(Reply(request, Refused(error)))
        for index in sorted(self._deferred):
            for deferred in self._deferred[index]:
                shared.emit(Reply(deferred.request, Refused(error)))
        for _, doubtful in self._doubtful:
            shared.emit(Reply(doubtful.request, Refused(error)))
