"""A key that is given to another user is that user's alone, in whatever order both come, and whatever becomes of the
leader."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from mq_broker.core.entries import (
    Abort,
    Decide,
    Entry,
    Finish,
    Give,
    Stage,
    TransactionKey,
)
from mq_broker.core.machine.admission import Admit, Answer, Verdict, WaitFor
from mq_broker.core.messages import AreStaged, Done, Refused
from mq_protocol.errors import (
    InvalidRequest,
    PermissionDenied,
    StagedBatchMissing,
    TransactionAborted,
    TritonMQError,
    UnknownTransaction,
)
from tests.mq_broker.core.machine.test_owners import KEY, MINE, NOBODY, THEIRS, Led, decide, error_of, uuid

NEW = "User:etl-2"


def result_of(verdict: Verdict) -> object:
    assert isinstance(verdict, Answer)
    return verdict.result


def test_a_key_that_was_given_is_the_new_owners_alone() -> None:
    led = Led()
    led.done(decide(0, MINE))
    led.done(Give(KEY, NEW))
    for attempt in (decide(1, MINE), decide(0, MINE), decide(0, MINE, run="another"), decide(1, THEIRS)):
        assert isinstance(error_of(led.ask(attempt)), PermissionDenied)
    led.done(decide(1, NEW))
    led.begin_anew()
    assert led.machine.transactions[KEY].owner == NEW
    assert isinstance(error_of(led.ask(decide(2, MINE))), PermissionDenied)


def test_a_run_of_the_new_owner_goes_on_with_what_was_decided_and_not_published() -> None:
    led = Led()
    led.done(decide(0, MINE, rows=1))
    led.done(Give(KEY, NEW))
    known = led.machine.transactions[KEY]
    assert (known.finished, len(known.manifest)) == (False, 1), "what was decided is published all the same"
    led.done(decide(0, NEW, run="second", rows=1))
    led.done(Finish(KEY, 0))
    led.done(decide(1, NEW, run="second"))


def test_whoever_decides_behind_a_give_waits_for_it_and_a_give_for_a_decision() -> None:
    led = Led()
    led.done(decide(0, MINE))
    assert isinstance(led.ask(decide(1, MINE)), Admit)
    assert led.ask(Give(KEY, NEW)) == WaitFor(2)
    led.commit()
    assert isinstance(led.ask(Give(KEY, NEW)), Admit)
    assert led.ask(decide(2, MINE)) == WaitFor(3)
    assert led.ask(Give(KEY, THEIRS)) == WaitFor(3)
    led.commit()
    assert isinstance(error_of(led.ask(decide(2, MINE))), PermissionDenied)


def test_a_give_that_is_asked_for_again_is_done_already() -> None:
    led = Led()
    led.done(decide(0, MINE))
    assert result_of(led.ask(Give(KEY, MINE))) == Done(0, duplicate=True, former=MINE)
    led.done(Give(KEY, NEW))
    assert result_of(led.ask(Give(KEY, NEW))) == Done(0, duplicate=True, former=NEW)


def test_what_nobody_owns_can_be_given() -> None:
    led = Led()
    led.done(decide(0, NOBODY))
    led.done(Give(KEY, NEW))
    assert isinstance(error_of(led.ask(decide(1, MINE))), PermissionDenied)


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (TransactionKey("unheard of", "t"), UnknownTransaction),
        (TransactionKey("work:1:0:g", "t"), InvalidRequest),
        (TransactionKey("aborted", "t"), TransactionAborted),
    ],
)
def test_a_key_that_is_nobodys_a_queue_groups_or_aborted_is_not_given(
    key: TransactionKey, error: type[TritonMQError]
) -> None:
    led = Led()
    led.done(Abort(TransactionKey("aborted", "t")))
    verdict = led.ask(Give(key, NEW))
    assert isinstance(error_of(verdict), error)
    assert isinstance(verdict, Answer)
    assert verdict.of_absence == (error is UnknownTransaction), "one deposed unawares may have missed the decision"


def test_a_give_in_the_journal_of_one_that_does_not_know_the_key_changes_nothing() -> None:
    led = Led()
    led.done(Abort(TransactionKey("other", "t")))
    led.machine.apply(Entry(2, 1, 2, Give(KEY, NEW)))
    assert KEY not in led.machine.transactions


def test_what_the_former_owner_has_staged_is_not_the_new_ones_and_the_other_way() -> None:
    led = Led()
    led.done(decide(0, MINE))
    led.done(Stage(KEY, 1, "run", owner=MINE), number=1)
    led.done(Give(KEY, NEW))
    led.done(Stage(KEY, 1, "run", owner=MINE), number=2)
    led.done(Stage(KEY, 1, "run", owner=NEW), number=3)
    assert isinstance(error_of(led.ask(AreStaged(KEY, 1, (uuid(1),), NEW))), StagedBatchMissing)
    assert isinstance(error_of(led.ask(AreStaged(KEY, 1, (uuid(2),), NEW))), StagedBatchMissing)
    assert isinstance(result_of(led.ask(AreStaged(KEY, 1, (uuid(3),), NEW))), Done)


# ---------------------------------------------------------------- every order


OWNERS = (MINE, THEIRS, NEW)
STEPS = (*(f"{who} decides" for who in OWNERS), *(f"given to {who}" for who in OWNERS[1:]), "commit", "fail over")


@pytest.mark.parametrize("first", STEPS)
def test_in_every_order_what_is_decided_is_decided_by_whose_the_key_was(first: str) -> None:
    for rest in itertools.product(STEPS, repeat=4):
        check_order((first, *rest))


@pytest.mark.parametrize("seed", range(100))
def test_in_long_orders_too(seed: int) -> None:
    chance = random.Random(seed)
    check_order([chance.choice((*STEPS, "snapshot")) for _ in range(200)])


def check_order(steps: Sequence[str]) -> None:
    led, owner, last = Led(), "", -1

    def commit() -> None:
        nonlocal owner, last
        for entry in led.tail:
            match entry.operation:
                case Decide() as decision:
                    owner = owner or decision.owner
                    assert decision.owner == owner, (steps, entry)
                    last = max(last, decision.batch_id)
                case Give(owner=new):
                    owner = new
        led.commit()

    for step in steps:
        match step.split():
            case [who, "decides"]:
                led.ask(decide(last + 1, who))
            case ["given", "to", who]:
                verdict = led.ask(Give(KEY, who))
                refused = isinstance(verdict, Answer) and isinstance(verdict.result, Refused)
                assert not refused or KEY not in led.machine.transactions
            case ["commit"]:
                commit()
            case ["fail", "over"]:
                led.fail_over()
            case ["snapshot"]:
                commit()
                led.begin_anew()
    commit()
    known = led.machine.transactions.get(KEY)
    assert (known.owner if known is not None else "") == owner, steps
