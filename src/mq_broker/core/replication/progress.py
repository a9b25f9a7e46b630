"""What a leader knows of one follower.

Invariants
- `acknowledged <= matched < next_index`, all of this epoch and of `log_id` alone
- `acknowledged` never falls while `log_id` stays
- `sent` holds the sequence numbers of messages not yet answered, at most `append_in_flight_max`
"""

from __future__ import annotations

from collections import deque

from mq_broker.core.messages import AppendAck


class Progress:
    """Owns one follower's position. `log_id` is "" until it has spoken in this epoch."""

    def __init__(self, broker: int, next_index: int, now_ms: int) -> None:
        self.broker = broker
        self.log_id = ""
        self.incarnation = 0
        self.matched = 0
        self.acknowledged = 0
        self.next_index = next_index
        self.probing = True
        self._probe_index = next_index  # where to begin while nothing is known to match
        self.connected = True
        self.sent: deque[int] = deque()
        self.last_sequence = 0
        self.heard_sequence = 0
        self.last_sent_ms = -(1 << 40)
        self.last_heard_ms = now_ms
        self.sent_high_watermark = 0
        self.behind_since_ms: int | None = None
        self.lag_target = 0
        self.lacks_base = False  # it was shown to lack the entry that this leader's journal begins after
        self._log_since = -1  # the last message sent before `log_id` was first heard of
        # Another log was heard of, and which of the two is over is not known yet: this one joins nothing
        self.disputed = False

    def hears(self, ack: AppendAck, now_ms: int) -> bool:
        """Is this of the follower's present life and log? A new one starts from nothing (rules 4, 5; trap 10)."""
        if ack.incarnation < self.incarnation:
            return False
        if ack.incarnation > self.incarnation or ack.log_id != self.log_id:
            # A log that was over before this one spoke answers nothing that was sent since; one that followed it will.
            if ack.incarnation == self.incarnation and ack.sequence <= self._log_since:
                self.lacks_base = False
                self.disputed = True
                self.rewind()  # which of the two is over cannot be told yet: the answer to what is sent next will tell
                return False
            self._log_since = self.last_sequence
            self.incarnation, self.log_id = ack.incarnation, ack.log_id
            self.matched = self.acknowledged = 0
            self.step_back(self.next_index)
            self.lacks_base = False
            self.behind_since_ms = None
            self.disputed = False
        self.disputed = self.disputed and ack.sequence <= self._log_since
        self.last_heard_ms = now_ms
        return True

    def rewind(self) -> None:
        """What was in flight may be lost: begin again, one message at a time, behind what matches or where that was
        sought."""
        self.step_back(self.matched + 1 if self.matched else self._probe_index)

    def step_back(self, next_index: int) -> None:
        """Look there for the entry that both logs have."""
        self.next_index = self._probe_index = next_index
        self.probing = True
        self.sent.clear()

    def sent_message(self, sequence: int, last_index: int, now_ms: int, high_watermark: int) -> None:
        self.sent.append(sequence)
        self.last_sequence = sequence
        self.last_sent_ms = now_ms
        self.sent_high_watermark = high_watermark
        self.next_index = last_index + 1
        if last_index > self.acknowledged and self.behind_since_ms is None:
            self.behind_since_ms, self.lag_target = now_ms, last_index

    def behind_ms(self, now_ms: int) -> int:
        """For how long something sent, or waiting to be sent, has not been acknowledged; 0 if nothing is."""
        return 0 if self.behind_since_ms is None else now_ms - self.behind_since_ms

    def unreachable(self, log_end: int, now_ms: int) -> None:
        """There is something to send and no way to: that is lag too."""
        if log_end > self.acknowledged and self.behind_since_ms is None:
            self.behind_since_ms, self.lag_target = now_ms, log_end

    def log_was_cut(self, last_index: int) -> None:
        """The leader's disk refused all entries after `last_index`, and no follower was sent any of them. So this one
        is not sent what would follow them, and it does not lag by them."""
        if self.next_index > last_index + 1:
            self.step_back(last_index + 1)
        self.lag_target = min(self.lag_target, last_index)
        if self.acknowledged >= last_index:
            self.behind_since_ms = None

    def answered(self, sequence: int) -> None:
        while self.sent and self.sent[0] <= sequence:
            self.sent.popleft()

    def caught_up_to(self, acknowledged: int, log_end: int, now_ms: int) -> None:
        """Lag is counted from messages sent: the clock starts anew whenever what was sent then has arrived."""
        self.acknowledged = max(self.acknowledged, acknowledged)
        if self.behind_since_ms is None or self.acknowledged < self.lag_target:
            return
        if self.acknowledged >= log_end:
            self.behind_since_ms = None
        else:
            self.behind_since_ms, self.lag_target = now_ms, self.next_index - 1
