"""How a leader gives its leadership to another: because its broker stops, because it was asked to, or because it does
not get on.

Rule 14. The leader goes on leading until a successor has the end of its log, or until the deadline. Then it writes to
the state node that it leads no more, and tells the followers who may claim.
"""

from __future__ import annotations

from collections.abc import Mapping

from mq_broker.core.messages import AppendEntries, HandedOver, Send
from mq_broker.core.replication.membership import Membership
from mq_broker.core.replication.progress import Progress
from mq_broker.core.replication.replica_state import Shared, without


class StandingBack:
    """Owns whether a leader is to stand back, until when it waits for a successor, and for whom."""

    def __init__(self, shared: Shared, membership: Membership, followers: Mapping[int, Progress]) -> None:
        self._shared = shared
        self._membership = membership
        self._followers = followers
        self._deadline_ms: int | None = None
        self._chosen = 0  # who is to lead next, if this one does not stop but was asked to let another lead
        self._parting = (-1, 0)  # the last message sent before it was to stop, and when that was
        self._leave_at_ms = 0
        self._resigning: int | None = None
        self.done = False

    @property
    def waiting(self) -> bool:
        """A successor is waited for."""
        return self._deadline_ms is not None

    @property
    def resigning(self) -> bool:
        """The end of this leadership is decided; only the state node does not say so yet."""
        return self._resigning is not None

    @property
    def broker_stops(self) -> bool:
        return self._deadline_ms is not None and not self._chosen

    @property
    def last_before(self) -> int:
        """The sequence number of the last message that was sent before this broker was to stop, -1 if it is not."""
        return self._parting[0]

    @property
    def pause_ms(self) -> int:
        """For how long this broker does not claim again afterwards: less if it was well and only asked to."""
        settings = self._shared.settings
        return settings.silence_ms if self._chosen else settings.leader_stuck_ms

    # ------------------------------------------------------------------ the reasons

    def hand_over(self, deadline_ms: int, sequence: int) -> None:
        """The broker stops. `sequence`: the last message that it has sent."""
        if self._deadline_ms is None or self._chosen:
            self._chosen, self._deadline_ms = 0, deadline_ms
            self._parting = sequence, self._shared.now_ms
        self.step()

    def transfer(self, to: int, deadline_ms: int) -> None:
        """Let that one lead as soon as it has everything; go on if it cannot by then."""
        if self._deadline_ms is None and self._resigning is None:
            self._chosen, self._deadline_ms = to, deadline_ms
            self.step()

    def leave_to_replicas(self) -> None:
        """The partition is assigned to other brokers: let one of them lead, as soon as one can (trap 19)."""
        shared = self._shared
        heir = 0 if shared.assigned or shared.now_ms < self._leave_at_ms else self._heir()
        if heir:
            self._leave_at_ms = shared.now_ms + 2 * shared.settings.silence_ms
            self.transfer(heir, shared.now_ms + shared.settings.silence_ms)

    def give_way(self) -> None:
        """Nothing was committed for long. Stand back if another broker may get on where this one does not."""
        relief = self._relief() if self._resigning is None else 0
        if relief:
            self._shared.audit(
                f"nothing was committed for {self._shared.settings.leader_stuck_ms} ms: standing back", alarm=True
            )
            self._resigning = relief

    def step(self) -> None:
        """Wait for a successor to have the end of the log, or for the deadline; then stand back."""
        shared = self._shared
        if self._deadline_ms is None or self._resigning is not None:
            return
        heir = self._heir()
        late = shared.now_ms >= self._deadline_ms
        if self._chosen and (late or not heir):
            shared.audit(f"broker {self._chosen} cannot lead {'in time' if heir else 'now'}: leading on")
            self._lead_on()
        elif heir and (late or (self._has_end(heir) and not self._parting_answers_due())):
            self._resigning = heir
        elif late or not self._heir_may_come():
            self._resigning = 0

    # ------------------------------------------------------------------ the successor

    def _heir(self) -> int:
        """The in-sync, registered follower that has most of the log, or the one chosen; 0 if there is none."""
        shared = self._shared
        heirs = [
            (progress.acknowledged, -shared.settings.replicas.index(progress.broker), progress.broker)
            for progress in self._followers.values()
            if (progress.broker, progress.log_id) in self._membership.confirmed
            and progress.broker in shared.live
            and progress.connected
            and progress.broker in shared.settings.replicas
            and self._chosen in (0, progress.broker)
        ]
        return max(heirs)[2] if heirs else 0

    def _relief(self) -> int:
        """A broker that could make progress where this leader cannot; 0 if there is none.

        It is an heir, or else a registered member of the ISR that this broker does not reach but others may. There is
        none if too few brokers are registered without this one.
        """
        live = [progress for progress in self._followers.values() if progress.broker in self._shared.live]
        if len(live) < self._shared.settings.min_insync_replicas:
            return 0
        heir = self._heir()
        if heir:
            return heir
        named = dict(self._membership.confirmed)
        return next((p.broker for p in live if p.broker in named and p.log_id in {"", named[p.broker]}), 0)

    def _heir_may_come(self) -> bool:
        """Whether any other in-sync broker is registered: else waiting for a successor is in vain (all brokers stop
        together)."""
        shared = self._shared
        return any(broker in shared.live for broker in self._membership.brokers() if broker != shared.me.broker)

    def _has_end(self, heir: int) -> bool:
        log = self._shared.log
        return self._shared.high_watermark == log.last_index and self._followers[heir].acknowledged >= log.last_index

    def _parting_answers_due(self) -> bool:
        """Whether a member that can be asked may still say that it is well, so that this broker's log need not stay
        named."""
        shared, (sequence, asked_ms) = self._shared, self._parting
        isr = self._membership.confirmed
        if (
            self._chosen
            or len(isr) <= shared.settings.min_insync_replicas
            or shared.now_ms - asked_ms > 2 * shared.settings.heartbeat_ms
        ):
            return False
        named = dict(isr)
        return any(
            p.log_id == named.get(p.broker) and p.connected and p.broker in shared.live and p.heard_sequence <= sequence
            for p in self._followers.values()
        )

    # ------------------------------------------------------------------ the end

    def finish(self, sequence: int) -> int:
        """Write the end of this leadership to the node and tell the followers, once that is written.

        `sequence` is of the last message sent; returns the same, or one more if followers were told.
        """
        shared = self._shared
        heir = self._resigning
        assert heir is not None
        if heir and not self._resigned():
            if self._deadline_ms is None or shared.now_ms < self._deadline_ms:
                return sequence
            if self._chosen:
                self._lead_on()
                return sequence
            heir = 0  # a write is unanswered still: leave it to them to find that this broker is gone
        if heir:
            shared.audit(f"hand leadership over to broker {heir}")
            sequence += 1
            self._tell(heir, sequence)
        if self.broker_stops:
            shared.emit(HandedOver(heir))
        self.done = True
        return sequence

    def ended(self) -> None:
        """The role ends, for whatever reason: whoever waits for the end of this leadership is told that nobody was
        chosen."""
        if self.broker_stops and not self.done:
            self._shared.emit(HandedOver(0))

    def _resigned(self) -> bool:
        isr = self._membership.confirmed
        if not self._chosen and len(isr) > self._shared.settings.min_insync_replicas and self._others_are_well():
            isr = without(isr, self._shared.me.broker)  # it stops, or its own disk is what nothing moves past
        return self._membership.resign(isr)

    def _others_are_well(self) -> bool:
        """Nothing but this disk holds the high watermark back, and every other member was heard of just now (if this
        leader is to stop: asked since), by the log named. Else this log may be the last that is whole, and must stay
        named."""
        shared = self._shared
        enough = min(shared.high_watermark + 1, shared.log.last_index)
        since_ms = shared.now_ms - 2 * shared.settings.heartbeat_ms
        others = [
            (self._followers.get(broker), log_id)
            for broker, log_id in self._membership.confirmed
            if broker != shared.me.broker
        ]
        return all(
            progress is not None
            and progress.log_id == log_id
            and progress.broker in shared.live
            and progress.acknowledged >= enough
            and progress.last_heard_ms >= since_ms
            and progress.heard_sequence > self._parting[0]
            for progress, log_id in others
        )

    def _tell(self, heir: int, sequence: int) -> None:
        shared = self._shared
        for progress in self._followers.values():
            previous = max(progress.matched, shared.log.base_index)
            message = AppendEntries(
                shared.me.broker,
                shared.me.incarnation,
                shared.epoch,
                previous,
                shared.log.epoch_at(previous),
                previous,
                shared.high_watermark,
                sequence,
                successor=heir,
            )
            shared.emit(Send(progress.broker, message))

    def _lead_on(self) -> None:
        self._chosen, self._deadline_ms, self._resigning = 0, None, None
