"""Random members of queue groups with an order, against what order means.

After every entry: of the unsettled records of a key those that are lent come first, and one member has all of them. No
record is accepted before an earlier one of its key is settled. Now and then a member asks for all that it may have, and
is lent exactly what a look at every record says. In the end everything is settled.
"""

from __future__ import annotations

from random import Random

import pytest

from mq_broker.broker.queues.group import led_group
from mq_broker.broker.queues.group.requests import OwnSteps
from mq_broker.broker.queues.policy import ordering, ready_records
from mq_broker.broker.queues.policy.ordering import STAYS_MS
from mq_broker.core.work.settling import Ack, Failed, Outcome, Rejected, Release
from mq_broker.core.work.state import NO_MARK
from mq_broker.core.work.steps import Accept, Drop, LeaseId, Reason, Reset
from mq_protocol.queues.settings import DeadLetter, Order
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Asked, Group, Settled, rounds

MEMBERS = ("a", "b", "c")

SMALL_BOUNDS = [
    (ordering, "READ_AT_ONCE", 7),
    (ordering, "_WALKED_AT_ONCE", 3),
    (ordering, "_BLOCK_RECORDS", 4),
    (ordering, "CAME_BACK_MAX", 4),
    (ready_records, "CAME_BACK_MAX", 4),
    (led_group, "SCANNED_AT_ONCE", 5),
]


class Walk:
    """Owns a group, and what its members think that they have."""

    def __init__(self, seed: int, order: Order) -> None:
        self.random = Random(seed)
        self.keys = [self.random.choice("pqr ") for _ in range(400)]
        self.order, self.limit = order, self.random.choice((0, 3))
        dead_letter = self.random.choice((DeadLetter.PARK, DeadLetter.DROP))
        self.group = Group(30, order=order, dead_letter=dead_letter, delivery_limit=self.limit, lease_ms=5_000)
        if order is Order.ALL:
            self.keys = ["x"] * 400
        self.group.key_of = lambda offset: None if self.keys[offset] == " " else ord(self.keys[offset])
        self.held: dict[str, dict[LeaseId, set[int]]] = {member: {} for member in MEMBERS}
        self.seen = 0
        self.accepted: list[int] = []

    async def step(self) -> None:
        random, group = self.random, self.group
        member = random.choice(MEMBERS)
        match random.randrange(12):
            case 0 | 1 | 2 | 3:
                await self.ask(member, random.choice((0, 1, 2, 5, 50)), accept=random.random() < 0.1)
            case 4 | 5 | 6 | 7:
                await self.settle(member)
            case 8:
                group.pass_ms(random.choice((10, 600, 1_500, 6_000)))
                group.led_group.wake()
            case 9 if group.led.next_offset < 350:
                group.led.append(random.randint(1, 20))
                group.led_group.wake()
            case 10 if random.random() < 0.2:
                group.led.trim(random.randint(group.state.base, group.led.next_offset))
                group.led_group.wake()
            case 10 if random.random() < 0.3:
                group.lead_anew()
            case 10:
                self.held[member] = {}  # another process, which knows of nothing
            case _ if random.random() < 0.3:
                first = random.randrange(group.led.next_offset)
                ranges = ((first, first + 1),)
                step = random.choice((Reset(ranges), Drop(ranges, Reason.PURGED)))
                group.led_group.add(OwnSteps(1, (step,)))
        await rounds()
        self.check()
        if random.random() < 0.4:
            await self.probe(random.choice(MEMBERS), accept=random.random() < 0.2)
            self.check()

    async def probe(self, member: str, *, accept: bool) -> None:
        """Ask for everything, as nobody else asks, and compare."""
        group = self.group
        before: list[LeaseId] | None = None
        while before != list(group.state.leases):  # those that run out; and who had them is waited for
            before = list(group.state.leases)
            group.pass_ms(STAYS_MS)
            group.led_group.wake()
            await rounds()
        if self.order is Order.ALL:
            member = next(iter(group.leased()), member)
        expected = self.may_have(member, accept=accept)
        if expected is None:
            return
        has = [lease for lease, each in group.state.leases.items() if each.member == member]
        self.held[member] = {lease: self.held[member].get(lease, set()) for lease in has}
        watching = group.ask(member, 0, held=frozenset(has), accept=accept)
        await rounds()
        told = watching.answered.done() and watching.answered.result().ready
        assert told == any(expected), f"{member} is told ready={told}, and may have {expected}"
        if not told:
            group.hurry(watching)
            await rounds()
        asking = group.ask(member, 1_000, held=frozenset(has), accept=accept)
        await rounds()
        runs = asking.answered.result().runs if asking.answered.done() else ()
        found = {offset for run in runs for offset in range(run.first, run.end)}
        assert found in expected, f"{member} may have {expected}, and is lent {sorted(found)}"
        assert found or not any(expected), f"{member} may have {expected}, and is lent nothing"
        await self.hear(member, asking)

    def may_have(self, member: str, *, accept: bool) -> list[set[int]] | None:
        """What this member is to be lent if it asks for everything: one of these. None if that rests on who asked
        before."""
        state, group = self.group.state, self.group
        limit = self.limit
        stopped: set[str] = set()
        found: set[int] = set()
        last: list[int] = []
        has_last = False
        first_of_key: set[str] = set()
        for first, end in state.settled.missing(0, group.led.next_offset):
            for offset in range(first, end):
                key = self.keys[offset]
                ordered, is_first = key != " ", key not in first_of_key
                first_of_key.add(key)
                mark, holder = state.marks.at(offset) or NO_MARK, state.holder(offset)
                is_last = limit >= 2 and mark.failures == limit - 1
                has_last = has_last or (is_last and holder is not None and holder[1] == member)
                if key in stopped and ordered:
                    continue
                if holder is not None:
                    if holder[1] != member or accept:
                        stopped.add(key)
                    continue
                if mark.doomed(limit) or mark.due_us > group.us:
                    stopped.add(key)
                elif is_last:
                    stopped.add(key)
                    if is_first or not ordered:
                        last.append(offset)
                else:
                    found.add(offset)
                    if accept and self.order is Order.KEY:
                        stopped.add(key)
        if has_last:
            return [set()]
        if not last:
            return [found]
        if any(each.member == member for each in state.leases.values()):
            return None  # it may be the one that is lent nothing until it has nothing
        return [found, *({each} for each in last)]  # which of them comes first is not promised

    async def ask(self, member: str, records_max: int, *, accept: bool = False) -> None:
        asking = self.asks(member, records_max, accept=accept)
        await rounds()
        await self.hear(member, asking)

    def asks(self, member: str, records_max: int, *, accept: bool = False) -> Asked:
        return self.group.ask(member, records_max, held=frozenset(self.held[member]), accept=accept)

    async def hear(self, member: str, asking: Asked) -> None:
        if not asking.answered.done():
            self.group.hurry(asking)
            await rounds()
        lent = asking.answered.result()
        for lease in lent.gone:
            self.held[member].pop(lease, None)
        if lent.lease is not None and not asking.accept:
            offsets = {offset for run in lent.runs for offset in range(run.first, run.end)}
            self.held[member][lent.lease] = offsets

    async def settle(self, member: str) -> None:
        """Some of what it has, in any order, by one request or by several at once."""
        random, group = self.random, self.group
        asked: list[Settled] = []
        for lease, offsets in list(self.held[member].items()):
            for offset in random.sample(sorted(offsets), random.randint(0, len(offsets))):
                outcomes: tuple[Outcome, ...] = (Release(), Failed("no"), Failed("no", 0), Rejected("never"))
                outcome = Ack() if random.random() < 0.8 else random.choice(outcomes)
                asked.append(group.outcome(outcome, member, lease, (offset, offset + 1)))
                offsets.discard(offset)
        group.led.keeps_up = random.random() < 0.5
        asking = self.asks(member, 5) if random.random() < 0.3 else None
        await rounds()
        group.led.keeps_up = True
        group.led.commit()
        await rounds()
        if asking is not None:
            await self.hear(member, asking)
        for settling in asked:
            if not settling.answered.done():  # it has overtaken another one
                group.led_group.withdraw(settling)

    def check(self) -> None:
        state = self.group.state
        unsettled = [o for a, b in state.settled.missing(0, self.group.led.next_offset) for o in range(a, b)]
        for work in self.group.led.proposed[self.seen :]:
            done = {o for step in work.steps if isinstance(step, Accept) for a, b in step.ranges for o in range(a, b)}
            for offset in sorted(done):
                before = [o for o in unsettled if o < offset and self.keys[o] == self.keys[offset] != " "]
                assert not before, f"{offset} is accepted before {before}"
        self.seen = len(self.group.led.proposed)
        for key in set(self.keys) - {" "}:
            holders = [state.holder(offset) for offset in unsettled if self.keys[offset] == key]
            lent = [holder[1] for holder in holders if holder is not None]
            assert len(set(lent)) <= 1, (key, holders)
            assert None not in holders[: len(lent)], f"{key}: a later record is lent and not an earlier one: {holders}"

    async def finish(self) -> None:
        group = self.group
        for _ in range(400):
            if group.state.base >= group.led.next_offset:
                return
            group.pass_ms(6_000)
            end = group.led.next_offset
            group.led_group.add(OwnSteps(1, (Reset(((0, end),)),)))
            await rounds()
            await self.ask("a", 50)
            for lease, offsets in self.held["a"].items():
                group.ack("a", lease, *[(offset, offset + 1) for offset in sorted(offsets)])
            await rounds()
            self.check()
        left = list(group.state.settled.missing(0, group.led.next_offset))
        raise AssertionError(f"{left} are not settled, leased are {group.leased()}")


@pytest.mark.parametrize("order", [Order.KEY, Order.ALL])
@pytest.mark.parametrize("seed", [*range(12), 57])
@virtual_time
async def test_records_of_a_key_are_lent_and_settled_in_order_whatever_members_do(
    seed: int, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # a few records are more than is done at once
        for module, bound, few in SMALL_BOUNDS:
            monkeypatch.setattr(module, bound, few)
    walk = Walk(seed, order)
    for _ in range(150):
        await walk.step()
    await walk.finish()
