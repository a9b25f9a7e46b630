"""Keys of transactions have owners: nobody else decides under them, in whatever order both come, and whatever becomes
of the leader."""

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
    Operation,
    Publish,
    Stage,
    TransactionKey,
)
from mq_broker.core.machine.admission import Admit, Answer, Verdict, WaitFor, judge
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import AreStaged, Decided, Done, Propose, Refused
from mq_broker.storage.codec.snapshot import decode_snapshot, encode_snapshot
from mq_protocol.errors import PermissionDenied, StagedBatchMissing, TritonMQError
from mq_protocol.manifest import StagedPart
from tests.mq_broker.storage.bed import PLACE

pytestmark = pytest.mark.long

KEY = TransactionKey("query", "t")
MINE, THEIRS, NOBODY = "User:etl", "User:thief", ""
BOUNDS = WindowBounds(100)


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "big")


def decide(batch_id: int, owner: str, run: str = "run", rows: int = 0) -> Decide:
    manifest = (StagedPart("t", 0, (uuid(1),), rows),) if rows else ()
    return Decide(KEY, batch_id, run, rows, manifest, owner=owner)


class Led:
    """A leader's machine, and the tail above it."""

    def __init__(self) -> None:
        self.machine = PartitionMachine(BOUNDS)
        self.tail: list[Entry] = []
        self.index = 0

    def ask(self, operation: Operation | AreStaged, *, for_anybody: bool = False, number: int = 0) -> Verdict:
        """Judged; what is admitted is written to the tail."""
        propose = Propose(1, operation, 0, uuid(number), record_count=1, for_anybody=for_anybody)
        verdict = judge(propose, self.machine, Overlay(self.tail), 1)
        if isinstance(verdict, Admit):
            self.index += 1
            self.tail.append(Entry(self.index, 1, self.index, verdict.operation, uuid(number), 1))
        return verdict

    def commit(self) -> None:
        for entry in self.tail:
            self.machine.apply(entry)
        self.tail = []

    def done(self, operation: Operation, *, number: int = 0, for_anybody: bool = False) -> None:
        assert isinstance(self.ask(operation, number=number, for_anybody=for_anybody), Admit)
        self.commit()

    def fail_over(self) -> None:
        """A successor has what is committed, and nothing of the tail."""
        self.tail = []

    def begin_anew(self) -> None:
        """From a snapshot that went over the wire."""
        snapshot = Snapshot(self.index, 1, self.index, self.machine.state())
        self.machine = PartitionMachine(BOUNDS, decode_snapshot(PLACE, encode_snapshot(PLACE, snapshot)).state)


def error_of(verdict: Verdict) -> TritonMQError:
    assert isinstance(verdict, Answer)
    assert isinstance(verdict.result, Refused)
    return verdict.result.error


# ---------------------------------------------------------------- decisions


def test_whoever_decides_first_is_the_only_one_who_decides() -> None:
    led = Led()
    led.done(decide(0, MINE))
    for attempt in (
        decide(1, THEIRS),
        decide(0, THEIRS, rows=1),  # another count: would tell what stands there
        decide(0, THEIRS, run="another"),  # would fence the owner's run
        decide(1, NOBODY),
        decide(2**62, THEIRS),
    ):
        error = error_of(led.ask(attempt))
        assert isinstance(error, PermissionDenied)
        assert "another user's" in str(error)
    assert led.tail == []
    led.done(decide(1, MINE))
    assert led.machine.transactions[KEY].owner == MINE


def test_two_who_come_at_once_are_not_both_first() -> None:
    led = Led()
    assert isinstance(led.ask(decide(0, MINE)), Admit)
    assert isinstance(led.ask(decide(0, THEIRS)), WaitFor)
    led.commit()
    assert isinstance(error_of(led.ask(decide(0, THEIRS))), PermissionDenied)


def test_what_nobody_owns_is_taken_over_by_who_comes_first_with_a_name() -> None:
    led = Led()
    led.done(decide(0, NOBODY))
    led.done(decide(1, NOBODY))
    led.done(decide(2, MINE))
    assert isinstance(error_of(led.ask(decide(3, NOBODY))), PermissionDenied)
    led.done(decide(3, MINE))


def test_another_run_of_the_owner_is_news_and_another_run_takes_what_nobody_owned() -> None:
    led = Led()
    led.done(decide(0, NOBODY))
    led.done(decide(0, MINE, run="second"))
    assert led.machine.transactions[KEY].owner == MINE
    assert led.machine.transactions[KEY].superseded == ("run",)


def test_who_may_decide_for_anybody_does_and_takes_nothing() -> None:
    led = Led()
    led.done(decide(0, MINE))
    led.done(decide(1, "User:admin"), for_anybody=True)
    assert led.machine.transactions[KEY].owner == MINE
    led.done(decide(2, MINE))


def test_an_aborted_key_keeps_its_owner() -> None:
    led = Led()
    led.done(decide(0, MINE))
    led.done(Abort(KEY))
    assert isinstance(error_of(led.ask(decide(0, THEIRS))), PermissionDenied)
    assert led.machine.transactions[KEY].owner == MINE


def test_the_owner_stays_over_failover_and_snapshot() -> None:
    led = Led()
    assert isinstance(led.ask(decide(0, THEIRS)), Admit)
    led.fail_over()
    led.done(decide(0, MINE))
    led.begin_anew()
    assert led.machine.transactions[KEY].owner == MINE
    assert isinstance(error_of(led.ask(decide(1, THEIRS))), PermissionDenied)


# ---------------------------------------------------------------- what is staged


@pytest.mark.parametrize(
    ("staged_by", "asked_by", "is_there"),
    [
        (MINE, MINE, True),
        (MINE, THEIRS, False),
        (MINE, NOBODY, False),
        (MINE, None, True),
        (NOBODY, MINE, True),
        (NOBODY, NOBODY, True),
        (THEIRS, MINE, False),
    ],
)
def test_what_another_has_staged_is_missing(staged_by: str, asked_by: str | None, is_there: bool) -> None:
    for snapshot in (False, True):
        led = Led()
        led.done(Stage(KEY, 3, "run", owner=staged_by), number=1)
        if snapshot:
            led.begin_anew()
        verdict = led.ask(AreStaged(KEY, 3, (uuid(1),), asked_by))
        assert isinstance(verdict, Answer)
        if is_there:
            assert isinstance(verdict.result, Done)
        else:
            assert isinstance(error_of(verdict), StagedBatchMissing)


def test_a_stranger_who_stages_under_a_key_keeps_its_owner_from_nothing() -> None:
    led = Led()
    led.done(Stage(KEY, 3, "run", owner=THEIRS), number=1)
    led.done(Stage(KEY, 3, "run", owner=MINE), number=2)
    assert isinstance(led.ask(AreStaged(KEY, 3, (uuid(2),), MINE)), Answer)
    led.done(Publish(KEY, 3, (uuid(2),)))
    assert [batch.owner for batch in led.machine.staged.values()] == [THEIRS]
    assert led.machine.next_offset == 1


# ---------------------------------------------------------------- every order


STEPS = ("mine decides", "theirs decides", "theirs runs again", "commit", "fail over", "snapshot", "finish")


@pytest.mark.parametrize("first", STEPS)
def test_in_every_order_one_owner_decides(first: str) -> None:
    """All orders of five steps behind the first: what is committed under the key is of one owner, whoever that is."""
    for rest in itertools.product(STEPS, repeat=4):
        check_order((first, *rest))


@pytest.mark.parametrize("seed", range(100))
def test_in_long_orders_too(seed: int) -> None:
    chance = random.Random(seed)
    check_order([chance.choice(STEPS) for _ in range(200)])


def check_order(steps: Sequence[str]) -> None:
    led, committed = Led(), list[str]()
    last = {MINE: 0, THEIRS: 0}

    def commit() -> None:
        committed.extend(each.operation.owner for each in led.tail if isinstance(each.operation, Decide))
        led.commit()

    for step in steps:
        match step:
            case "mine decides" | "theirs decides":
                who = MINE if step.startswith("mine") else THEIRS
                verdict = led.ask(decide(last[who], who))
                last[who] += isinstance(verdict, Admit)
            case "theirs runs again":
                verdict = led.ask(decide(max(last[MINE] - 1, 0), THEIRS, run="stolen"))
                assert (
                    not (isinstance(verdict, Answer) and isinstance(verdict.result, Decided)) or MINE not in committed
                )
            case "commit":
                commit()
            case "fail over":
                led.fail_over()
            case "snapshot":
                commit()
                led.begin_anew()
            case "finish":
                led.ask(Finish(KEY, 0))
                commit()
    commit()
    assert len(set(committed)) <= 1, steps
    if committed:
        assert led.machine.transactions[KEY].owner == committed[0]
