"""What members are told is judged by what is certain, and by no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mq_broker.core.work.steps import LeaseId, Return
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.core.work.model import Model, Record
from tests.simulation.real.order_truth import FAILED, OrderTruth
from tests.simulation.real.workers import Ledger


def ledger_in_order(failures: list[str], now_s: list[float]) -> Ledger:
    """Of a group in order, whose records 0 and 3 have one key."""
    loop = SimpleNamespace(time=lambda: now_s[0])
    order = OrderTruth(cast(Any, None), "key")
    order.published(0, range(6))
    truth = SimpleNamespace(place="t-0", order=order, is_old=lambda asked_at: asked_at < 0.5)
    return Ledger(cast(Any, SimpleNamespace(loop=loop, fail=failures.append)), cast(Any, truth))


def test_a_record_may_go_to_another_member_once_an_earlier_one_of_its_key_has_gone() -> None:
    """The lease of record 0 runs out and takes record 3 with it. Another member has settled 0 when 3 is lent again."""
    failures: list[str] = []
    now_s = [1.0]
    ledger = ledger_in_order(failures, now_s)
    ledger.receive("a", 0, 1.0, 1, 0)
    ledger.receive("a", 3, 1.0, 1, 0)
    ledger.extended("a", 3, 2.0)
    now_s[0] = 4.2
    ledger.receive("b", 0, 4.1, 2, 1)
    ledger.settled(LEASE, 0, 0, 4.15)
    ledger.receive("c", 3, 4.1, 2, 0)
    assert failures == []


def test_a_record_of_another_key_stays_with_its_member() -> None:
    failures: list[str] = []
    now_s = [1.0]
    ledger = ledger_in_order(failures, now_s)
    ledger.receive("a", 0, 1.0, 1, 0)
    ledger.receive("a", 4, 1.0, 1, 0)
    ledger.extended("a", 4, 2.0)
    now_s[0] = 4.2
    ledger.receive("b", 0, 4.1, 2, 1)
    ledger.receive("c", 4, 4.1, 2, 0)
    assert failures == ["t-0 offset 4 was lent to c while a had it, until 5.000000 at least"]


def test_what_was_asked_before_a_recovery_is_not_held_against_anybody() -> None:
    failures: list[str] = []
    now_s = [1.0]
    ledger = ledger_in_order(failures, now_s)
    ledger.settled(LEASE, 0, int(pb.OUTCOME_ACK), 0.4)
    ledger.receive("a", 0, 0.9, 1, 0)
    assert failures == [], "that it was settled may be lost"
    ledger.settled(LEASE, 0, int(pb.OUTCOME_ACK), 0.95)
    ledger.receive("b", 0, 1.5, 2, 0)
    assert failures[0] == "t-0 offset 0 was lent to b after it had been settled at 1.000000"


LEASE = LeaseId(1, 5, 0)


def told_of_one(failures: list[str], steps: list[Return], back: int, left: int) -> None:
    """Of records 0 and 3, which have one key and one lease, its member hears that one went back, and has the other."""
    truth = SimpleNamespace(was_asked=lambda lease, offset: False, _fail=failures.append)
    order = OrderTruth(cast(Any, truth), "key")
    order.published(0, range(6))
    model = Model({0: Record(lease=LEASE), 3: Record(lease=LEASE)}, {LEASE: "a"})
    for step in steps:
        order.gives_back(step, {first: LEASE for first, _ in step.ranges}, model, 9)
    order.told("a", [(LEASE, back)], set(), {LEASE: {left}})


def test_what_runs_out_in_the_entry_that_gives_back_another_did_not_go_with_it() -> None:
    failures: list[str] = []
    steps = [Return(((3, 4),), True, 0, FAILED), Return(((0, 1),), True, 0, "the lease ran out")]
    told_of_one(failures, steps, back=3, left=0)
    assert failures == []


def test_a_member_is_to_be_told_what_went_back_with_others() -> None:
    failures: list[str] = []
    told_of_one(failures, [Return(((0, 1),), True, 0, FAILED), Return(((3, 4),))], back=0, left=3)
    assert failures == [f"offset 3 went back from {LEASE} with others, and a was not told"]
