"""Faults to plant in the sessions by which members of queue groups are pushed their records."""

from __future__ import annotations

from tests.simulation.real.fault import Fault

SESSIONS = (
    Fault(
        "what was lent to a session is pushed into the one that its member has now",
        "broker.queues.session:Session.answered",
        "if self.over or (coming is None and standing is not self._standing):",
        "now = self._gathering.present._here.get(self.member, self)\n"
        "    if now is not self and lent.lease is not None:\n"
        "        now._lent += sum(run.end - run.first for run in lent.runs)\n"
        "        now.told.append(lent)\n"
        "        now._news(now, weight(lent))\n"
        "    if self.over or (coming is None and standing is not self._standing):",
        ("queue", "pushed"),
    ),
    Fault(
        "a member is pushed what an entry lends before it is answered what that settles",
        "broker.queues.group.led_group:LedGroup._finish",
        "settling.answer(number, answer if error is None else Answer(error=error))",
        "self._loop.call_soon(settling.answer, number, answer if error is None else Answer(error=error))",
        ("queue", "pushed"),
    ),
    Fault(
        "a member that names a lease when it comes back keeps all of it",
        "broker.queues.group.holdings:Holdings._given_back",
        "if held.get(lease) != ())",
        "if lease not in held)",
        ("queue", "pushed"),
    ),
    Fault(
        "a member that names an offset when it comes back keeps it by whatever lease",
        "broker.queues.group.holdings:Holdings._given_back",
        "without(known, held[lease]) if lease in held else known",
        "without(known, joined(*held.values()))",
        ("queue", "pushed"),
    ),
    Fault(
        "what a member does not claim when it comes back stays its own",
        "broker.queues.group.led_group:LedGroup._reconcile",
        "if asking.returns else ([], True)",
        "if asking.returns and asking.once else ([], True)",
        ("queue", "pushed"),
    ),
    Fault(
        "a member whose session broke is lost at once",
        "broker.queues.group.led_group:LedGroup.close_session",
        "self._now_ms() + self._resume_ms()",
        "self._now_ms()",
        ("queue", "pushed"),
    ),
    Fault(
        "what was pushed does not count for the credit",
        "broker.queues.session:Session._ask",
        "records = max(self._records - self._lent, 0)",
        "records = self._records",
        ("queue", "pushed"),
    ),
    Fault(
        "a lease that is pushed is told before its entry is committed",
        "broker.queues.group.led_group:LedGroup._propose",
        "self.partition.propose(work, lambda result: self._replied(draft, result), math.inf)",
        "self.partition.propose(work, lambda result: None, math.inf)\n        self._replied(draft, Done(draft.at[1]))",
        ("queue", "pushed", "lead"),
    ),
)
