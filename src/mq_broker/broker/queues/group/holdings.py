"""What is lent: to whom, and for how long. Pure: the time is an argument, milliseconds of a monotonic clock.

Which records are leased is a fact and in the state. Whose process it is, and when a lease runs out, this leader alone
knows. What is to become of leases is said as requests to settle, which are judged with those of members.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from mq_broker.broker.queues.group.clocks import Clocks
from mq_broker.broker.queues.group.members import LEASES_MAX, WORKING_MAX, Members, first_unsettled
from mq_broker.broker.queues.group.requests import Asking, Extend
from mq_broker.core.work.endings import How
from mq_broker.core.work.order import without
from mq_broker.core.work.ranges import RANGES_MAX, Range, Ranges, joined
from mq_broker.core.work.settling import Answer, Failed, Release, Settle
from mq_broker.core.work.state import NO_MARK, WorkState
from mq_broker.core.work.steps import LeaseId
from mq_broker.security.names import member_shown
from mq_protocol.names import quoted

log = logging.getLogger(__name__)

EXPIRED_LOGGED_MAX: Final = 10

INHERITED_LEASE_MS_MIN: Final = 10_000
"""How long a lease that a new leader finds lives at least: its member may not have found this leader yet."""

RETURNED_AT_ONCE: Final = 1_000
"""Ranges of leases that run out, or that nobody claims, in one entry: some 20 ms if each is of another lease."""

RAN_OUT: Final = "the lease ran out"
REPLACED: Final = "the process that held it ended"
LOST: Final = "the connection of the member that held it broke, and it did not come back"


class Holdings:
    """Owns the clocks and the members of one state, in one leadership."""

    def __init__(self, state: WorkState, epoch: int) -> None:
        self.members = Members(state)
        self._state = state
        self._epoch = epoch
        self._clocks = Clocks()
        self._inherited = deque(state.lent)  # what former leaders have lent, still to be taken up

    def take_up(self, most: int, lease_ms: int, now_ms: int) -> bool:
        """Begin with the next runs that former leaders have lent, at most so many. Returns whether all are known."""
        for _ in range(min(most, len(self._inherited))):
            first, end, lease = self._inherited.popleft()
            held = self._state.leases.get(lease)
            if held is not None:
                self._clocks.start(lease, [(first, end)], max(lease_ms, INHERITED_LEASE_MS_MIN), _begun(now_ms))
                self.members.lent(held.member, lease)
        return not self._inherited

    def lent(self, lease: LeaseId, member: str, ranges: Iterable[Range], lease_ms: int) -> None:
        """An entry is on its way that lends them."""
        self._clocks.know(lease, ranges, lease_ms)
        self.members.lent(member, lease)
        self._clocks.prune(self._state.leases)

    def begin(self, lease: LeaseId, now_ms: int) -> None:
        """It is committed: the member has the whole time of the lease from now on."""
        self._clocks.begin(lease, _begun(now_ms))

    def slept(self, now_ms: int) -> None:
        """This leader stood still, so that nobody could extend anything."""
        self._clocks.restart(_begun(now_ms))

    def due(self, now_ms: int) -> bool:
        """Whether a lease has run out, perhaps."""
        return self._clocks.due(now_ms)

    def of(self, lease: LeaseId, ranges: Iterable[Range]) -> list[Range]:
        """What of these is in the lease still."""
        return [(first, end) for first, end, its in self._state.lent.covered(ranges) if its == lease]

    # ------------------------------------------------------------------ what ends leases

    def expired(self, now_ms: int, *, ordered: bool = False) -> list[Settle]:
        """Leases that have run out go back. Charged is what their members can have begun; with an order that is the
        first record of each key, which others then get after a while, since its member may only be late. Told again
        until the records are not leased any more."""
        settles: list[Settle] = []
        count = 0
        unsettled = self._state.settled.missing_count
        for lease, ranges in sorted(self._clocks.expired(now_ms, RETURNED_AT_ONCE)):
            held = joined((first, end) for first, end in self.of(lease, ranges) if unsettled(first, end))
            if not held:
                self._clocks.over(lease, now_ms)
            elif count < RETURNED_AT_ONCE:
                some = held[: RETURNED_AT_ONCE - count]
                count += len(some)
                settles += self._ran_out(lease, some, ordered=ordered)
        return settles

    def _ran_out(self, lease: LeaseId, ranges: Ranges, *, ordered: bool) -> list[Settle]:
        member, missing_count = self._state.leases[lease].member, self._state.settled.missing_count
        if ordered:
            return [Settle(lease, member, ranges, Failed(RAN_OUT, begun_first=True), said=False)]
        begun = self.members.begun(member, ranges)
        settles = [Settle(lease, member, joined(begun), Failed(RAN_OUT), said=False)] if begun else []
        rest = [(first, end) for first, end in without(ranges, begun) if missing_count(first, end)]
        return [*settles, Settle(lease, member, joined(rest), Release(), said=False)] if rest else settles

    def unclaimed(self, asking: Asking, most: int) -> tuple[list[Settle], bool]:
        """Leases that the member does not name go back: they were lent by answers that it never had, or to a process
        whose place it took. Of such a process the first records are charged: it may have died of them. At most so many
        ranges, and whether those are all."""
        member = asking.member
        charge = min(max(asking.working, 1), WORKING_MAX) if self.members.is_another(member, asking.key) else 0
        return self._given_back(member, asking.held, charge, REPLACED, most)

    def given_up(self, member: str, most: int, *, lost: bool) -> tuple[list[Settle], bool]:
        """All that a member has goes back, since its session is over. `lost`: it did not come back, so that it may have
        died of the first records. At most so many ranges, and whether those are all."""
        return self._given_back(member, {}, self.members.working(member) if lost else 0, LOST, most)

    def _given_back(
        self, member: str, held: Mapping[LeaseId, Ranges], charge: int, why: str, most: int
    ) -> tuple[list[Settle], bool]:
        """What a member has, but what is `held` (no ranges: all of the lease), what is on its way to it too. So many
        records, the first ones that it can have had, are charged."""
        settles: list[Settle] = []
        count = 0
        for lease in sorted(lease for lease in self.members.leases(member) if held.get(lease) != ()):
            if count >= most:
                return settles, False
            charged: list[Range] = []
            left: list[Range] = []
            known = self._clocks.ranges(lease)
            for first, end in self.of(lease, without(known, held[lease]) if lease in held else known):
                some = charge if self._clocks.has_begun(lease) else 0
                until, taken = first_unsettled(self._state, first, end, some)
                charged += [(first, until)] if taken else []
                charge -= taken
                left += [(until, end)] if self._state.settled.missing_count(until, end) else []
            rests = joined(left)[: most - count]
            ended = Failed(why, begun_first=True)
            settles += [Settle(lease, member, joined(charged), ended, said=False)] if charged else []
            settles += [Settle(lease, member, rests, Release(), said=False)] if rests else []
            count += len(charged) + len(rests)
        return settles, count < most

    # ------------------------------------------------------------------ what members know

    def claim(self, asking: Asking, lease_ms: int, now_ms: int) -> None:
        """How long a lease is, is not in the journal: a new leader, which took it to be as long as the group says,
        hears it from whoever has the lease."""
        if asking.lease_ms <= max(lease_ms, INHERITED_LEASE_MS_MIN):
            return
        for lease in asking.held:
            held = self._state.leases.get(lease)
            if held is not None and held.member == asking.member and lease.leader_epoch < self._epoch:
                self._clocks.lengthen(lease, asking.lease_ms, _begun(now_ms))

    def gone(self, asking: Asking) -> tuple[LeaseId, ...]:
        """Of the leases that it names those of which it has nothing any more."""
        leases, member = self._state.leases, asking.member
        return tuple(
            lease for lease in sorted(asking.held) if (held := leases.get(lease)) is None or held.member != member
        )

    def extend(self, item: Extend, now_ms: int) -> Answer:
        """The records that are the member's have the whole time of their lease again. All others are lost, but those
        that were acknowledged under it."""
        held = self._state.leases.get(item.lease)
        ranges: list[Range] = []
        if held is not None and held.member == item.member:
            ranges = self.of(item.lease, item.ranges)
            self._clocks.extend(item.lease, ranges, _begun(now_ms))
        lost: list[Range] = []
        endings, settled = self._state.endings, self._state.settled
        for first, end, ending in endings.of(item.lease).pieces(without(item.ranges, ranges)):
            acknowledged = endings.is_whole(item.lease) if ending is None else ending.how is How.ACCEPTED
            lost += islice(settled.missing(first, end), RANGES_MAX) if acknowledged else [(first, end)]
        return Answer(lost=joined(lost))

    def full(self, member: str, limit: int) -> bool:
        """Whether the member is lent no more before it has settled something: it has too many leases, or a record that
        is lent alone, since its next failure is its last."""
        leases = self.members.leases(member)
        if len(leases) != 1:
            return len(leases) >= LEASES_MAX
        lease = next(iter(leases))
        if limit < 2 or self._state.leases[lease].records != 1:
            return False
        for first, end in self.of(lease, self._clocks.ranges(lease)):
            offset = self._state.settled.next_missing(first)
            if offset < end:
                return (self._state.marks.at(offset) or NO_MARK).failures == limit - 1
        return False


def _begun(now_ms: int) -> int:
    """When a lease begins, so that none is too short: a millisecond of `now_ms` may have passed."""
    return now_ms + 1


def tell_expired(partition: str, group: str, settles: Sequence[Settle]) -> None:
    """Log whose leases ran out, the first ones."""
    for settle in settles[:EXPIRED_LOGGED_MAX]:
        log.info(
            "%s: a lease of group %s ran out: %s did not settle it in time",
            partition,
            quoted(group),
            quoted(member_shown(settle.member)),
        )


def tell_lost(partition: str, group: str, members: Sequence[str]) -> None:
    """Log whose connections broke for good, the first ones."""
    for member in members[:EXPIRED_LOGGED_MAX]:
        log.info(
            "%s: member %s of group %s did not come back after its connection broke: what it had is lent to others",
            partition,
            quoted(member_shown(member)),
            quoted(group),
        )
