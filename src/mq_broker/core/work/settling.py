"""What becomes of requests to settle, and how they become steps of one entry.

Requests are judged when their entry is made, one after another, each on the state that the steps before it leave.
Nothing here changes the state: the steps do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Final, NamedTuple, TypeAlias

from mq_broker.core.work.endings import How
from mq_broker.core.work.order import Order, without
from mq_broker.core.work.ranges import RANGES_MAX, Range, Ranges, joined, why_wrong
from mq_broker.core.work.run_map import RunMap
from mq_broker.core.work.state import OUTBOX_MAX, WorkState
from mq_broker.core.work.steps import (
    ENTRY_BYTES_MAX,
    Accept,
    LeaseId,
    OutputLine,
    Reason,
    Reject,
    Return,
    Send,
    Step,
    ranges_of,
    step_bytes,
)
from mq_protocol.errors import InvalidRequest, NotLeader, Overloaded, TritonMQError


@dataclass(frozen=True, slots=True)
class Ack:
    """They were worked on."""


@dataclass(frozen=True, slots=True)
class AckWithOutputs:
    """They were worked on, and this is to be published. `number` grows with each such request of a member."""

    lines: tuple[OutputLine, ...]
    number: int


@dataclass(frozen=True, slots=True)
class Release:
    """They go back and are not charged. `delay_us`: for so long after this is judged they are not lent."""

    delay_us: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """They go back and are charged. `delay_us`: None for what the group's `Backoff` says. `begun_first`: only what
    their holder can have begun is charged, the first one of each key."""

    error: str = ""
    delay_us: int | None = None
    begun_first: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """They are doomed at once."""

    error: str = ""


Outcome: TypeAlias = Ack | AckWithOutputs | Release | Failed | Rejected


@dataclass(frozen=True, slots=True)
class Settle:
    """A member's word on records that were lent to it. Not `said`: its leader takes them from it."""

    lease: LeaseId
    member: str
    ranges: Ranges
    outcome: Outcome
    said: bool = True


@dataclass(frozen=True, slots=True)
class SendDead:
    """These doomed records are to be settled, and `lines`, their letters, published; all of it or nothing."""

    ranges: Ranges
    reason: Reason
    lines: tuple[OutputLine, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request, once the entry is committed: all of it is done but `lost`.

    `lost`: those records are not the member's any more. That rests on something not being here, so it is said only once
    the leader knows that it still leads. `error`: nothing of the request is done, unless it is `OutcomeUnknown`: then
    it may be, and is to be said again. `pulled`: records of the member that went back with these, since they come after
    one of them in the group's order, by lease. `waits`: of an ack, what is not done, since an earlier record of its key
    is not settled: to be asked again once that is.
    """

    lost: Ranges = ()
    error: TritonMQError | None = None
    pulled: tuple[tuple[LeaseId, Ranges], ...] = ()
    waits: Ranges = ()


@dataclass(frozen=True, slots=True)
class Gathered:
    """The steps of one entry, none if nothing is to be written; an answer for each request that was taken, in order.
    What did not fit has none, and is to be gathered anew."""

    steps: tuple[Step, ...]
    settled: tuple[Answer, ...]
    sent: tuple[Answer, ...] = ()


@dataclass(frozen=True, slots=True)
class Backoff:
    """When a record that failed is lent again: `first_ms` after its first failure, `factor` times as long after each
    further one, at most `most_ms`."""

    first_ms: int = 1_000
    factor: float = 2.0
    most_ms: int = 60_000

    def due_us(self, now_us: int, failures: int) -> int:
        """`failures`: those before this one."""
        wait_ms = self.most_ms if failures > 64 else min(self.first_ms * self.factor**failures, self.most_ms)
        return now_us + int(wait_ms * 1_000)


@dataclass(frozen=True, slots=True)
class Setting:
    """What requests are judged by, besides the state. `end`: of the log. `next_n`: the first number for the outbox that
    was not given yet. `delivery_limit`: of failures, 0 for none. `order`: None where each record is by itself; with one
    a record that nobody has any more is not acknowledged."""

    leader_epoch: int
    end: int
    now_us: int
    next_n: int
    backoff: Backoff = field(default_factory=Backoff)
    delivery_limit: int = 0
    order: Order | None = None


def gather(state: WorkState, settles: Sequence[Settle], setting: Setting, dead: Sequence[SendDead] = ()) -> Gathered:
    """As many of these requests as fit into one entry: at most 8,000 ranges and 1 MiB. Settles stand before dead
    letters."""
    entry = _Entry(state, setting)
    settled: list[Answer] = []
    sent: list[Answer] = []
    for settle in settles:
        answer = entry.settle(settle)
        if answer is None:
            return Gathered(entry.steps(), tuple(settled))
        settled.append(answer)
    for send in dead:
        answer = entry.send(send)
        if answer is None:
            break
        sent.append(answer)
    return Gathered(entry.steps(), tuple(settled), tuple(sent))


class _Now(NamedTuple):
    """What the steps before have made of a record: `lease` ended so. No lease: it was sent as a dead letter."""

    lease: LeaseId | None
    how: How


class _Judged(NamedTuple):
    """`mine`: what an outcome is for, settled records among them. `late`: of an acknowledgement, what nobody has since
    this lease ran out."""

    mine: list[Range]
    late: list[Range]
    lost: list[Range]


PIECES_MAX: Final = 2 * RANGES_MAX
"""Of runs that one entry's settles are compared with. One range may lie over all the runs of a group, and to look at
each takes three microseconds."""

_TOO_MANY: Final = f"the request concerns more than {RANGES_MAX} ranges of records: settle fewer at once"


def _how(settle: Settle) -> How:
    """How the lease ends by it."""
    match settle.outcome:
        case Ack() | AckWithOutputs():
            return How.ACCEPTED
        case _ if not settle.said:
            return How.TAKEN
        case Release():
            return How.RELEASED
        case Failed():
            return How.FAILED
        case Rejected():
            return How.REJECTED


def _each(ranges: Iterable[Range], settle: Settle) -> list[tuple[int, int, _Now]]:
    """These, as the outcome leaves them."""
    now = _Now(settle.lease, _how(settle))
    return [(first, end, now) for first, end in ranges]


class _Entry:
    """Owns the steps so far, and what they change."""

    def __init__(self, state: WorkState, setting: Setting) -> None:
        self._state = state
        self._setting = setting
        self._touched: RunMap[_Now] = RunMap()
        self._done: RunMap[bool] = RunMap()  # with an order: what the steps so far settle
        self._steps: list[Step] = []
        self._open: list[Range] = []  # the ranges of the last step, which may grow
        self._taken: dict[str, int] = {}
        self._next_n = setting.next_n
        self._outputs = 0
        self._ranges = 0
        self._bytes = 0
        self._pieces = 0

    def steps(self) -> tuple[Step, ...]:
        self._close()
        return tuple(self._steps)

    # ------------------------------------------------------------------ settling

    def settle(self, settle: Settle) -> Answer | None:
        """None if it does not fit into this entry."""
        setting = self._setting
        if settle.lease.leader_epoch > setting.leader_epoch:
            return Answer(
                error=NotLeader(
                    f"the lease is of epoch {settle.lease.leader_epoch}, and this broker leads epoch "
                    f"{setting.leader_epoch}: ask again, another broker may lead by now"
                )
            )
        why = why_wrong(settle.ranges, setting.end)
        if why:
            return Answer(error=InvalidRequest(f"these records cannot be settled: {why}"))
        if isinstance(settle.outcome, AckWithOutputs):
            return self._settle_with_outputs(settle, settle.outcome)
        before = self._pieces
        judged = self._judged(settle)
        if judged is None:
            return None if before else Answer(error=InvalidRequest(_TOO_MANY))
        mine, late, lost = judged
        answer = Answer(lost=joined(lost))
        if isinstance(settle.outcome, Ack):
            if setting.order is not None and mine:
                waits = setting.order.overtaking(mine, self._done)
                mine, answer = without(mine, waits), replace(answer, waits=waits)
            steps = [Accept(joined(some), of) for some, of in ((mine, None), (late, settle.lease)) if some]
            return self._written(steps, _each(joined(mine, late), settle), answer)
        if setting.order is not None and mine:
            return self._give_back(settle, mine, answer, setting.order)
        return self._written(self._steps_of(settle, mine), _each(joined(mine), settle), answer)

    def _give_back(self, settle: Settle, mine: list[Range], answer: Answer, order: Order) -> Answer | None:
        """With them go the member's later records of their keys, uncharged. What cannot be in one entry stays: it
        cannot be settled before those that went."""
        state, leases = self._state, dict[LeaseId, list[Range]]()
        named = mine
        if isinstance(settle.outcome, Failed) and settle.outcome.begun_first:
            missing = (piece for low, high in mine for piece in state.settled.missing(low, high))
            exact = list(islice(missing, RANGES_MAX))
            if len(exact) < RANGES_MAX:
                named = exact
                mine = without(named, order.of_those_after(named, named))
        pulled: list[tuple[int, int, _Now]] = []
        # What a step before has given back, as it ran out, the member is told too: it is not to begin with it.
        touched = self._touched.pieces(order.behind(mine))
        behind = [piece for piece in touched if piece[2] is None or piece[2].how is not How.ACCEPTED]
        others = without(((low, high) for low, high, _ in behind), mine)
        for first, end, lease in islice(state.lent.covered(others), RANGES_MAX - len(named)):
            if state.leases[lease].member == settle.member:
                leases.setdefault(lease, []).append((first, end))
                untouched = [(low, high) for low, high, now in self._touched.pieces(((first, end),)) if now is None]
                pulled += [(low, high, _Now(lease, How.TAKEN)) for low, high in untouched]
        steps = self._steps_of(settle, mine)
        steps += [Return(joined((low, high) for low, high, _ in pulled))] if pulled else []
        told = tuple((lease, joined(ranges)) for lease, ranges in leases.items())
        back = sorted([*_each(joined(mine), settle), *pulled])
        return self._written(steps, back, replace(answer, pulled=told))

    def _written(
        self, steps: Sequence[Step], touched: Sequence[tuple[int, int, _Now]], answer: Answer
    ) -> Answer | None:
        """`touched`: by these steps, ascending and disjoint."""
        ranges = sum(len(ranges_of(step)) for step in steps)
        size = sum(map(step_bytes, steps))
        if ranges > RANGES_MAX or size > ENTRY_BYTES_MAX:
            return Answer(error=InvalidRequest(_TOO_MANY))
        if self._ranges + ranges > RANGES_MAX or self._bytes + size > ENTRY_BYTES_MAX:
            return None
        self._ranges += ranges
        self._bytes += size
        for step in steps:
            self._add(step)
        self._touched.assign(touched)
        if self._setting.order is not None:
            self._done.assign([(low, high, True) for low, high, now in touched if now.how is How.ACCEPTED])
        return answer

    def _judged(self, settle: Settle) -> _Judged | None:
        """None if they are in too many pieces."""
        state, member = self._state, settle.member
        judged = _Judged([], [], [])
        for low, high, now in self._touched.pieces(settle.ranges):
            self._pieces += 1
            for first, end, lease in state.lent.pieces(((low, high),)):
                theirs = lease == settle.lease and state.leases[lease].member == member
                if theirs and now is None and state.settled.missing_count(first, end):
                    self._pieces += 1
                    judged.mine.append((first, end))
                    if settle.said and _how(settle) is not How.ACCEPTED:  # what was acknowledged does not go back
                        judged.lost.extend(self._settled(first, end))
                else:
                    self._judge_ended(settle, (first, end), now, judged, held=lease is not None)
                if self._pieces > PIECES_MAX or len(judged.lost) > RANGES_MAX:
                    return None
        return judged

    def _judge_ended(self, settle: Settle, where: Range, now: _Now | None, judged: _Judged, *, held: bool) -> None:
        """This lease has ended, as far as these are concerned. `held`: by another one."""
        state, how, setting = self._state, _how(settle), self._setting
        accepted = how is How.ACCEPTED and state.endings.is_whole(settle.lease)
        for low, high, ending in state.endings.of(settle.lease).pieces((where,)):
            self._pieces += 1
            if ending is not None and ending.how is how:
                continue  # said again
            done = accepted and ending is None  # what of it is settled
            late = isinstance(settle.outcome, Ack) and setting.order is None and not held and now is None
            if ending is None or ending.how is not How.TAKEN or not late:
                if now == _Now(settle.lease, how):
                    judged.lost.extend(() if how is How.ACCEPTED else self._settled(low, high))
                else:
                    judged.lost.extend(self._unsettled(low, high) if done else ((low, high),))
                continue
            judged.lost.extend(self._settled(low, high))
            for first, end, mark in state.marks.pieces(self._unsettled(low, high)):
                self._pieces += 1
                if self._pieces > PIECES_MAX:
                    return
                last = mark is not None and mark.deliveries == ending.deliveries
                welcome = mark is not None and last and not mark.doomed(setting.delivery_limit)
                (judged.late if welcome else judged.lost).append((first, end))

    def _unsettled(self, first: int, end: int) -> Iterator[Range]:
        """What of these was not settled before this entry, as far as anybody may have it looked for."""
        room = max(PIECES_MAX - self._pieces, 0) + 1  # what is beyond is in too many pieces, and not looked at
        for missing in islice(self._state.settled.missing(first, end), room):
            self._pieces += 1
            yield missing

    def _settled(self, first: int, end: int) -> Iterator[Range]:
        """All others of these."""
        for low, high in chain(self._unsettled(first, end), ((end, end),)):
            if first < low:
                yield first, low
            first = high

    def _steps_of(self, settle: Settle, mine: list[Range]) -> list[Step]:
        if not mine:
            return []
        match settle.outcome:
            case Release(delay_us):
                return [Return(joined(mine), False, self._due_us(delay_us), said=settle.said)]
            case Rejected(error):
                return [Reject(joined(mine), error)]
            case Failed(error, None):
                due: dict[int, list[Range]] = {}
                for low, high, mark in self._state.marks.pieces(mine):
                    at = self._setting.backoff.due_us(self._setting.now_us, mark.failures if mark is not None else 0)
                    due.setdefault(at, []).append((low, high))
                return [Return(joined(ranges), True, at, error, settle.said) for at, ranges in due.items()]
            case Failed(error, int(delay_us)):
                return [Return(joined(mine), True, self._due_us(delay_us), error, settle.said)]
            case _:
                raise AssertionError("is settled otherwise")

    def _due_us(self, delay_us: int) -> int:
        return self._setting.now_us + delay_us if delay_us else 0

    def _settle_with_outputs(self, settle: Settle, outcome: AckWithOutputs) -> Answer | None:
        """All of it or nothing: the records are the member's and unsettled, or no output is published."""
        state, member = self._state, settle.member
        if outcome.number <= max(state.taken.get(member, -1), self._taken.get(member, -1)):
            judged = self._judged(settle)  # asked again, if it has settled all of them; else nothing was ever decided
            return Answer(lost=settle.ranges if judged is None or any(judged) else ())
        for low, high, now in self._touched.pieces(settle.ranges):
            for first, end, lease in state.lent.pieces(((low, high),)):
                held = lease == settle.lease and state.leases[settle.lease].member == member
                if now is not None or not held or state.settled.missing_count(first, end) < end - first:
                    return Answer(lost=settle.ranges)
        order = self._setting.order
        if order is not None and settle.ranges and order.overtaking(settle.ranges, self._done):
            return Answer(waits=settle.ranges)
        if not settle.ranges:
            return Answer(
                error=InvalidRequest("outputs are published with the records that they were made of: name some")
            )
        if len(state.outbox) + self._outputs >= OUTBOX_MAX:
            return Answer(error=Overloaded("too many outputs are decided and not published yet: ask again in a moment"))
        send = Send(settle.ranges, Reason.OUTPUT, self._next_n, outcome.lines, member, outcome.number)
        answer = self._written([send], _each(settle.ranges, settle), Answer())
        if answer is not None and answer.error is None:
            self._next_n += 1
            self._outputs += 1
            self._taken[member] = outcome.number
        return answer

    # ------------------------------------------------------------------ dead letters

    def send(self, send: SendDead) -> Answer | None:
        """None if it does not fit into this entry. They must be doomed, expired or surplus, and nobody's: what was
        purged, reset, parked or settled since the letters were made is not sent, nor what goes with it."""
        why = why_wrong(send.ranges, self._setting.end)
        if why or not send.ranges:
            return Answer(error=InvalidRequest(f"these records cannot be sent: {why or 'there are none'}"))
        if any(now is not None for _, _, now in self._touched.pieces(send.ranges)):
            return Answer(lost=send.ranges)
        state, limit = self._state, self._setting.delivery_limit
        if any(lease is not None for _, _, lease in state.lent.pieces(send.ranges)):
            return Answer(lost=send.ranges)
        for first, end, mark in state.marks.pieces(send.ranges):
            doomed = mark is not None and mark.doomed(limit)
            parked = mark is not None and mark.parked
            unsettled = state.settled.missing_count(first, end) == end - first
            if parked or not unsettled or not (doomed or send.reason in (Reason.EXPIRED, Reason.LENGTH)):
                return Answer(lost=send.ranges)
        if len(state.outbox) + self._outputs >= OUTBOX_MAX:
            return Answer(error=Overloaded("too many decisions of the group are not published yet"))
        step = Send(send.ranges, send.reason, self._next_n, send.lines)
        answer = self._written([step], [(*each, _Now(None, How.ACCEPTED)) for each in send.ranges], Answer())
        if answer is not None and answer.error is None:
            self._next_n += 1
            self._outputs += 1
        return answer

    # ------------------------------------------------------------------ steps

    def _add(self, step: Step) -> None:
        """Steps that say the same of different records are one."""
        ranges = ranges_of(step)
        if isinstance(step, Accept | Return | Reject):
            bare = replace(step, ranges=())
            if not self._steps or self._steps[-1] != bare:
                self._close()
                self._steps.append(bare)
            self._open += ranges
        else:
            self._close()
            self._steps.append(step)

    def _close(self) -> None:
        last = self._steps[-1] if self._steps else None
        if self._open and isinstance(last, Accept | Return | Reject):
            self._steps[-1] = replace(last, ranges=joined(self._open))
        self._open = []
