"""What a candidate asks before it claims: how far the other live replicas are (rule 6). Used while not leading.

The state node names logs that were whole when they were named. A directory that was put back to an older copy of itself
carries the name and lacks the entries. So a claim needs company: as many replicas as every commit needed, among them
one whose log is whole as long as all but one are.
"""

from __future__ import annotations

from mq_broker.core.messages import NodeState, Send, SoFar
from mq_broker.core.replication.replica_state import Shared

_ANSWER_MS = 20
"""So long an answer may be on its way before it is taken for lost."""


class Company:
    """Owns one round of questions and its answers. A round ends when the node, or who lives, has changed: what was
    answered before says nothing then."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._question = ""
        self._answers: dict[int, SoFar] = {}
        self._began_ms = self._asked_ms = self._ask_at_ms = self._wait_ms = 0

    def end(self) -> None:
        """The next question begins a round."""
        self._question = ""
        self._answers.clear()

    def ask(self, state: NodeState) -> None:
        """Ask every live replica how far it is: at once, and then ever more seldom, up to once in `silence_ms`."""
        shared, me = self._shared, self._shared.me
        if not self._question:
            # No other round of any log has this name: not in this life, nor in this millisecond
            self._question = f"{me.incarnation}.{me.log_id}.{shared.now_ms}"
            self._began_ms = self._ask_at_ms = shared.now_ms
            self._wait_ms = shared.settings.claim_delay_ms
        if shared.now_ms < self._ask_at_ms:
            return
        self._asked_ms, self._ask_at_ms = shared.now_ms, shared.now_ms + self._wait_ms
        self._wait_ms = min(2 * self._wait_ms, shared.settings.silence_ms)
        for broker in self._others(state):
            if broker in shared.live:
                shared.emit(Send(broker, shared.so_far(self._question, asks=True)))

    def ask_again(self, broker: int) -> None:
        """That one can hear now, and perhaps could not before. Unless it has answered, all are asked again."""
        if broker not in self._answers and self._shared.now_ms - self._asked_ms >= _ANSWER_MS:
            self._ask_at_ms = self._shared.now_ms

    def answered(self, answer: SoFar) -> None:
        """An answer; to a question of another round it says nothing."""
        if self._question and answer.question == self._question:
            self._answers[answer.broker] = answer

    def allows(self, state: NodeState) -> bool:
        """Whether this replica may claim: `min_insync_replicas` live replicas were heard, itself among them, and no log
        that the node names is ahead among them. Fewer only where fewer are named, as after a recovery (rule 15).
        Whoever is named and lives has `silence_ms` to answer."""
        shared, named = self._shared, dict(state.isr)
        heard, others, floor = self._heard(), self._others(state), shared.settings.min_insync_replicas
        # After a restoration so many that one of any `floor` replicas is among them, and any log that is ahead counts
        needed = max(floor, len(others) + 2 - floor) if shared.restored else min(floor, len(named))
        if 1 + len(heard) < needed:
            return False
        mine = (shared.log.last_epoch, shared.log.last_index)
        if any(
            (shared.restored or named.get(answer.broker) in {"", answer.log_id})
            and (answer.last_epoch, answer.last_index) > mine
            for answer in heard
        ):
            return False
        silent = {broker for broker in others if broker in named and broker in shared.live} - self._answers.keys()
        return not silent or shared.now_ms - self._began_ms >= shared.settings.silence_ms

    def as_far(self) -> list[tuple[int, str]]:
        """The logs that were heard and have on their disks what this one has."""
        end = (self._shared.log.last_epoch, self._shared.log.last_index)
        heard = self._heard()
        return [(each.broker, each.log_id) for each in heard if (each.last_epoch, each.last_index) == end]

    def _heard(self) -> list[SoFar]:
        live = self._shared.live
        return [answer for answer in self._answers.values() if live.get(answer.broker) == answer.incarnation]

    def comes_before(self, broker: int) -> bool:
        """Whether that replica, which ranks before this one, is as far: if it is not it does not claim."""
        log, answer = self._shared.log, self._answers.get(broker)
        return answer is None or (answer.last_epoch, answer.last_index) >= (log.last_epoch, log.last_index)

    def _others(self, state: NodeState) -> list[int]:
        """The other replicas, and those that are named and no replicas any more: their logs are whole (trap 19)."""
        members = dict.fromkeys((*self._shared.settings.replicas, *(broker for broker, _ in state.isr)))
        return [broker for broker in members if broker != self._shared.me.broker]
