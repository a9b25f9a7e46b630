"""Who may lead, and how a leaderless partition is claimed (rules 6 and 7). Used while not leading.

Whoever may lead asks first how far the others are (`Company`): it claims in company, and if no named log is ahead. A
claim is one compare-and-set on the state node. Its answer may be lost; then only a higher version seen, or a later
success on the same version, settles it. Nobody resumes an epoch: named but not leading means claim anew, or write
leader = none.
"""

from __future__ import annotations

from dataclasses import replace

from mq_broker.core.messages import CasAnswer, CasOutcome, NodeState, Send, SoFar
from mq_broker.core.replication.replica_state import Node, Shared, with_member, without
from mq_protocol.limits import next_life

_STAND_BACK_MAX_MS = 60_000
"""How long a replica whose disk refuses what a leader writes leaves that to others, at most."""

_ANSWER_MS = 20
"""So long an answer may be on its way before it is taken for lost."""


class Company:
    """What a candidate asks before it claims: how far the other live replicas are (rule 6).

    The state node names logs that were whole when they were named. A directory that was put back to an older copy of
    itself carries the name and lacks the entries. So a claim needs company: as many replicas as every commit needed,
    among them one whose log is whole as long as all but one are.

    Owns one round of questions and its answers. A round ends when the node, or who lives, has changed: what was
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


class Election:
    """Owns the claim in flight and when the next may be made."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.company = Company(shared)
        self._in_flight: NodeState | None = None
        self._unsettled: dict[str, NodeState] = {}
        self._leaderless_since_ms: int | None = None
        self._retry_at_ms = 0
        self.stand_back_until_ms = 0
        self._preferred_until_ms = 0
        self._refusals = self._refused_index = 0

    @property
    def at_rest(self) -> bool:
        """The node was read and gives no reason to claim, and no claim is under way."""
        node = self._shared.node
        if node is None or self._in_flight is not None or self._unsettled or self.preferred:
            return False
        return not self.knows_none

    @property
    def knows_none(self) -> bool:
        """Nobody leads, as the node says that was read."""
        node = self._shared.node
        if node is None or (node.state.leader_epoch < self._shared.epoch and not self._shared.restored):
            return False
        return self._leaderless(node.state)

    # -- may I?

    def _leaderless(self, state: NodeState) -> bool:
        shared = self._shared  # whom a node names that was put back led then, and nobody resumes an epoch
        return state.leader in {None, shared.my_name} or shared.restored or not shared.is_registered(state.leader)

    def _next_state(self, state: NodeState) -> NodeState | None:
        """The node after my claim; None if this replica may not lead."""
        shared = self._shared
        me, settings = shared.me, shared.settings
        recovery, floor = state.recovery, state.offset_floor
        if shared.restored:
            return self._above_all_seen(state)
        if shared.my_member in state.isr:
            isr = state.isr
        elif (me.broker, "") in state.isr:
            # Named since the topic was made and never by a log id: no log can stand for that name, so nothing was ever
            # committed.
            isr = with_member(state.isr, me.broker, me.log_id)
        elif (
            settings.begins_empty
            and settings.replicas == (me.broker,)
            and all(broker == me.broker for broker, _ in state.isr)
        ):
            isr = (shared.my_member,)  # memory, one replica: a restart empties it, as the documentation says
            recovery, floor = recovery + 1, next_life(floor)
        else:
            return None
        former = state.leader
        if former is not None and former.broker != me.broker:
            smaller = without(isr, former.broker)
            if len(smaller) >= settings.min_insync_replicas:
                isr = smaller
        return replace(
            state,
            leader=shared.my_name,
            leader_epoch=state.leader_epoch + 1,
            isr=isr,
            recovery=recovery,
            offset_floor=floor,
        )

    def _above_all_seen(self, state: NodeState) -> NodeState | None:
        """After the coordination service was put back to an older copy: whom it names says nothing any more. Whoever
        was heard and is as far as this log is in sync with it."""
        shared = self._shared
        if state.recovery > shared.recovery:
            return None
        return replace(
            state,
            leader=shared.my_name,
            leader_epoch=shared.epoch + 1,
            isr=tuple(sorted((shared.my_member, *self.company.as_far()))),
            recovery=shared.recovery,
        )

    def _rank(self, state: NodeState) -> int:
        """How many registered members of the ISR come before this replica and are not behind it: each waits for those
        before it. One that is named and no replica any more comes last: its log is whole, and may be the only one that
        is (trap 19)."""
        shared = self._shared
        members = {broker for broker, _ in state.isr}
        rank = 0
        for broker in shared.settings.replicas:
            if broker == shared.me.broker:
                break
            if broker in members and broker in shared.live and self.company.comes_before(broker):
                rank += 1
        return rank

    # -- time

    def tick(self) -> None:
        """Claim if the partition has no leader, this replica may lead, those ranked before it have had their time, and
        no log is known to be ahead of this one."""
        shared = self._shared
        node = shared.node
        if node is None or self._in_flight is not None or not shared.registered or shared.now_ms < self._retry_at_ms:
            return
        if shared.reading or (node.state.leader_epoch < shared.epoch and not shared.restored):
            return  # what is known of the node is old: a claim on it could only be refused
        if not self._leaderless(node.state):
            self.reconsider()
            return
        named, proposal = node.state.leader == shared.my_name, self._next_state(node.state)
        if named and (proposal is None or self.stands_back):
            self._propose(node, self._nobody(node.state))  # let others lead (trap 27)
        if proposal is None or self._in_flight is not None:
            return
        if self._leaderless_since_ms is None:
            self._leaderless_since_ms = shared.now_ms
        self.company.ask(node.state)  # who is asked looks at the node: one that stands back has them notice
        if self.stands_back:
            return
        waited_ms = shared.now_ms - self._leaderless_since_ms
        rank = 0 if self.preferred or named else self._rank(node.state)
        if waited_ms >= rank * shared.settings.claim_delay_ms and self.company.allows(node.state):
            self._propose(node, proposal)
        elif named and waited_ms >= shared.settings.claim_delay_ms:
            self._propose(node, self._nobody(node.state))

    def _nobody(self, state: NodeState) -> NodeState:
        return replace(state, leader=None)

    def _propose(self, node: Node, proposal: NodeState) -> None:
        what = f"claim epoch {proposal.leader_epoch}" if proposal.leader else "let others lead"
        self._shared.audit(f"{what} on version {node.version}: {self._why(node.state)}")
        self._in_flight = replace(proposal, token=self._shared.next_token())
        self._shared.write_node(node.version, self._in_flight)

    def _why(self, state: NodeState) -> str:
        if state.leader is None:
            return "nobody leads"
        if state.leader == self._shared.my_name:
            return "named, but not leading"
        return f"broker {state.leader.broker} (incarnation {state.leader.incarnation}) is gone"

    def stand_back(self, ms: int) -> None:
        """Claim nothing for so long. The leader that it was has written that nobody leads: read that before writing it
        again."""
        shared = self._shared
        self.stand_back_until_ms = shared.now_ms + ms
        self._retry_at_ms = shared.now_ms + shared.settings.claim_delay_ms
        shared.reading_since_ms = None
        shared.read_node()

    def disk_refused(self, first_index: int) -> None:
        """This leader's disk is full. Others, whatever their rank, have claimed before it does so again; each time in a
        row they have longer."""
        settings = self._shared.settings
        self._refusals, self._refused_index = self._refusals + 1, first_index
        pause_ms = min(settings.silence_ms << min(self._refusals, 10), _STAND_BACK_MAX_MS)
        self.stand_back_until_ms = self._shared.now_ms + pause_ms

    def flushed(self, index: int) -> None:
        """The disk takes entries again."""
        if index >= self._refused_index:
            self._refusals = 0

    @property
    def stands_back(self) -> bool:
        """It led, and leaves that to others for a while."""
        return self._shared.now_ms < self.stand_back_until_ms

    def prefer(self, chosen: bool) -> None:
        """A leader that stands back wants this one to claim next, or another."""
        self._preferred_until_ms = self._shared.now_ms + self._shared.settings.silence_ms if chosen else 0

    @property
    def preferred(self) -> bool:
        return self._shared.now_ms < self._preferred_until_ms

    # -- answers

    def answered(self, answer: CasAnswer) -> NodeState | None:
        """Take in the answer of a claim. Returns the state to take up, if it made this replica the leader."""
        shared = self._shared
        claim = self._in_flight
        if claim is None or claim.token != answer.token:
            return None
        self._in_flight = None
        self.reconsider()
        if answer.outcome is CasOutcome.DONE:
            self._unsettled.clear()
            if shared.node is None or answer.version >= shared.node.version:
                shared.take_node(Node(answer.version, claim))
                return self._take_up(claim)
            return None
        if answer.outcome is CasOutcome.UNKNOWN:
            self._unsettled[claim.token] = claim
        self._retry_at_ms = shared.now_ms + shared.settings.claim_delay_ms
        shared.reading_since_ms = None
        shared.read_node()
        return None

    def node_changed(self) -> NodeState | None:
        """The node was read at a higher version: a lost claim may have happened. Returns the state to take up, if
        so."""
        shared = self._shared
        assert shared.node is not None
        self.reconsider()
        self._retry_at_ms = 0
        mine = self._unsettled.get(shared.node.state.token)
        self._unsettled.clear()
        if mine is not None and mine == shared.node.state and self._in_flight is None:
            return self._take_up(mine)
        return None

    def _take_up(self, state: NodeState) -> NodeState | None:
        """Only if this life is named and its present log still is (trap 26), and nothing newer was seen meanwhile."""
        shared = self._shared
        if state.leader != shared.my_name or shared.my_member not in state.isr or not shared.registered:
            return None
        return state if state.leader_epoch == shared.epoch else None

    def reconsider(self) -> None:
        """Who lives has changed, or the node: delays are counted anew, and all are asked again."""
        self._leaderless_since_ms = None
        self.company.end()
