"""A leader's view of the in-sync set: what is confirmed, what is proposed, and so over whom the high watermark is
counted.

Rules 4, 5 and 7. The *maximal* ISR is the confirmed one and every proposal that may have happened: a member is waited
for as long as any of them names it.
"""

from __future__ import annotations

from dataclasses import replace

from mq_broker.core.messages import CasAnswer, CasOutcome, NodeState
from mq_broker.core.replication.progress import Progress
from mq_broker.core.replication.replica_state import Node, Shared, with_member, without

Isr = tuple[tuple[int, str], ...]


class Membership:
    """Owns the proposals of one leadership. At most one compare-and-set is in flight."""

    def __init__(self, shared: Shared, state: NodeState) -> None:
        self._shared = shared
        self.confirmed: Isr = state.isr
        self._in_flight: Node | None = None  # the proposal, with the version that it expects
        self._unsettled: dict[str, NodeState] = {}
        self._retry_at_ms = 0

    def maximal(self) -> list[tuple[int, str]]:
        """Every (broker, log id) that a node state which may be in force names."""
        members = dict.fromkeys(self.confirmed)
        for state in self._unsettled.values():
            members.update(dict.fromkeys(state.isr))
        return list(members)

    def brokers(self) -> tuple[int, ...]:
        return tuple(broker for broker, _ in self.confirmed)

    @property
    def at_rest(self) -> bool:
        """No write of the set is unanswered or unsettled."""
        return self._in_flight is None and not self._unsettled

    # -- proposing

    def _shrunk(self, isr: Isr, followers: dict[int, Progress]) -> tuple[Isr, list[str]]:
        """Without members that are gone or lag, as far as the floor allows: the gone ones first."""
        shared, settings = self._shared, self._shared.settings
        now = shared.now_ms
        gone, lagging = [], []
        for broker, log_id in isr:
            if broker == shared.me.broker:
                continue
            progress = followers.get(broker)
            if broker not in shared.live:
                gone.append((broker, "gone"))
            elif progress is None or broker not in settings.replicas:
                gone.append((broker, "not a replica"))
            elif log_id and progress.log_id not in ("", log_id):
                # And the named one never comes back: do not wait for it
                gone.append((broker, "its log is another now"))
            elif progress.behind_ms(now) > settings.replica_lag_ms_max:
                lagging.append((broker, f"behind for {progress.behind_ms(now)} ms"))
        why = []
        for broker, reason in gone + lagging:
            if len(isr) <= settings.min_insync_replicas:
                break  # the floor: the dead member stays named and the high watermark waits (rule 5, trap 30)
            isr = without(isr, broker)
            why.append(f"-{broker} ({reason})")
        return isr, why

    def _expanded(self, isr: Isr, followers: dict[int, Progress], epoch_start: int) -> tuple[Isr, list[str]]:
        """With every registered follower whose newest log has, in this epoch, the high watermark and the epoch
        start."""
        shared = self._shared
        why = []
        for progress in followers.values():
            complete = progress.log_id and progress.acknowledged >= max(shared.high_watermark, epoch_start)
            if progress.disputed:
                continue  # the newest log heard of may be the other one
            if progress.behind_ms(shared.now_ms) > shared.settings.replica_lag_ms_max:
                continue  # it has what is committed only because nothing can be committed without it
            if progress.broker not in shared.settings.replicas:
                continue
            if shared.live.get(progress.broker) != progress.incarnation:
                continue  # it is not registered, or a later life is, whose log may be another
            if complete and (progress.broker, progress.log_id) not in isr:
                isr = with_member(isr, progress.broker, progress.log_id)
                why.append(f"+{progress.broker}")
        return isr, why

    def propose(self, followers: dict[int, Progress], epoch_start: int, *, shrink: bool = True) -> None:
        """Write the set as it should be, if it differs or a former write is unsettled. `shrink`: whether members may be
        dropped."""
        shared = self._shared
        if self._in_flight is not None or shared.now_ms < self._retry_at_ms or shared.node is None:
            return
        smaller, dropped = self._shrunk(self.confirmed, followers) if shrink else (self.confirmed, [])
        target, added = self._expanded(smaller, followers, epoch_start)
        if target == self.confirmed and not self._unsettled:
            return
        state = shared.node.state
        proposal = replace(state, isr=target, token=shared.next_token())
        why = " ".join(dropped + added) or "settle an unanswered write"
        shared.audit(f"propose isr {[b for b, _ in target]} on version {shared.node.version}: {why}")
        self._send(proposal)

    def resign(self, isr: Isr) -> bool:
        """Write leader = none. False while another write is in flight: ask again."""
        shared = self._shared
        if self._in_flight is not None or shared.node is None:
            return False
        state = shared.node.state
        self._send(replace(state, leader=None, isr=isr, token=shared.next_token()))
        return True

    def _send(self, proposal: NodeState) -> None:
        shared = self._shared
        assert shared.node is not None
        self._in_flight = Node(shared.node.version, proposal)
        self._unsettled[proposal.token] = proposal
        shared.write_node(shared.node.version, proposal)

    # -- answers

    def answered(self, answer: CasAnswer) -> bool:
        """Take in an answer. Returns False if the write was refused: stop acknowledging until the node was read."""
        shared = self._shared
        if self._in_flight is None or self._in_flight.state.token != answer.token:
            return True
        expected, proposal = self._in_flight.version, self._in_flight.state
        self._in_flight = None
        match answer.outcome:
            case CasOutcome.DONE:
                if shared.node is None or answer.version >= shared.node.version:
                    shared.node = Node(answer.version, proposal)
                    self.confirmed = proposal.isr
                    self._unsettled.clear()
                return True
            case CasOutcome.UNKNOWN:
                self._retry_at_ms = shared.now_ms + shared.settings.claim_delay_ms
                shared.reading_since_ms = None
                shared.read_node()
                return True
            case CasOutcome.REFUSED:
                if shared.node is not None and shared.node.version > expected:
                    return True  # by a version that was read since, and obeyed
                shared.reading_since_ms = None
                shared.read_node()
                return False

    def node_changed(self, state: NodeState) -> None:
        """A higher version that still names this leadership: it settles everything (rule 7)."""
        self.confirmed = state.isr
        self._unsettled.clear()
        self._retry_at_ms = 0
