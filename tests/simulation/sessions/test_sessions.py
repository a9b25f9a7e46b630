"""Members that are pushed their records get on, whatever goes wrong, and what would stop them is found."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from mq_broker.broker.queues.session import Session
from mq_client.queueing import sessions, shares
from mq_client.queueing.holdings import Credit
from mq_client.queueing.keeper import Keeper
from mq_client.queueing.shares import Shares
from mq_protocol import mq_pb2 as pb
from mq_protocol.queues.settings import Order
from tests.simulation.sessions.world import Plan, Report, simulate

CALM = replace(
    Plan.of(1),
    order=Order.NONE,
    partitions=3,
    brokers=3,
    members=1,
    credit=Credit(12, 16 << 20),
    size=10,
    backlog=0,
    trickle_s=0.05,
    together=3,
    skewed=False,
    hands=2,
    batch=1,
    accept=False,
    work_s=(0.0, 0.01),
    stuck=0.0,
    lease_ms=30_000,
    limit=0,
    delay_s=(0.0002, 0.002),
    commit_s=(0.001, 0.005),
    faults={},
    fails=0.0,
)

FEW_BYTES = replace(
    CALM,
    partitions=6,
    credit=Credit(600, 1 << 20),
    size=1_000,
    together=480,
    batch=50,
    work_s=(0.0, 0.001),
    delay_s=(0.002, 0.02),
    chaos_s=10.0,
    narrows_s=3.0,
)
"""Bytes are what leaders wait for, and now and then a member wants fewer records."""


BYTES_LEFT = (
    ("self.lent_bytes + (min(size, self.out_bytes) if records else 0)", "self.bytes"),
    ("account.sent or (account.ready and account.out)", "account.out or account.sent"),
    ("if not (account.out and size and out_bytes < self._few_bytes):", "if True:"),
    ("account.out == 0 or account.out_bytes < self._few_bytes for", "account.out == 0 for"),
    ("account.out > keep or (account.out and account.out_bytes > self._few_bytes)", "account.out > keep"),
    ("much = (account.out + records) * self", "much = records * self"),
)
"""Edits of shares.py by which only records are taken back from leaders that have nothing."""


def failure(report: Report) -> str:
    return "\n".join(
        [str(report.violation), *report.story, f"python -m tests.simulation.sessions --seed {report.seed}"]
    )


@pytest.mark.parametrize("seed", [*range(1, 7), *(pytest.param(s, marks=pytest.mark.long) for s in range(7, 40))])
def test_whatever_goes_wrong_members_get_on_and_have_no_more_than_they_may(seed: int) -> None:
    report = simulate(seed)
    assert report.violation is None, failure(report)
    assert report.done["settled"] > 0


def test_the_same_seed_is_the_same_run() -> None:
    assert simulate(2).trace == simulate(2).trace


def test_a_leader_that_does_not_say_that_fewer_bytes_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a member waited for ever for the leader's word, and gave it nothing more."""
    set_credit = Session.set_credit

    def fewer_records_alone(session: Session, credit: pb.WorkCredit) -> None:
        credit.recall = credit.records < session._records
        set_credit(session, credit)

    monkeypatch.setattr(Session, "set_credit", fewer_records_alone)
    report = simulate(5, FEW_BYTES)
    assert report.violation is not None
    assert "m1" in report.violation


def test_bytes_that_lie_idle_with_leaders_that_have_nothing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the leader that had records was given some bytes at a time, and members crept on."""
    assert simulate(85, FEW_BYTES).violation is None
    source = inspect.getsource(shares)
    for old, new in BYTES_LEFT:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    former: Any = ModuleType("former_shares")
    monkeypatch.setitem(sys.modules, "former_shares", former)
    exec(source, vars(former))
    monkeypatch.setattr(sessions, "Shares", former.Shares)
    monkeypatch.setattr(sessions, "Account", former.Account)
    report = simulate(85, FEW_BYTES)
    assert report.violation is not None
    assert "crumbs" in report.violation


def test_a_member_that_waits_takes_no_turns_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a queue in order each turn woke the application, which asked for another one."""
    turns: list[Keeper] = []
    turn = Keeper._turn

    def counted(keeper: Keeper) -> bool:
        turns.append(keeper)
        assert len(turns) < 300, "in eight seconds, nearly all without a record"
        return turn(keeper)

    monkeypatch.setattr(Keeper, "_turn", counted)
    report = simulate(1, replace(CALM, order=Order.KEY, backlog=20, trickle_s=1e9))
    assert report.violation is None, failure(report)
    assert report.done["settled"] == 20


def test_a_member_that_gives_more_credit_than_it_has_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    hand_out = Shares.hand_out

    def twice(shares: Shares, accounts: Any, whole: Credit, held: Credit, **others: Any) -> None:
        hand_out(shares, accounts, Credit(2 * whole.records, whole.bytes), held, **others)

    monkeypatch.setattr(Shares, "hand_out", twice)
    report = simulate(1, replace(CALM, backlog=100, work_s=(0.2, 0.3)))
    assert report.violation is not None
    assert "and may hold 12" in report.violation
