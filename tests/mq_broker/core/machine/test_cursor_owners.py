"""The cursor by which a query shows how far it is belongs to who moved it first: nobody else moves it, in whatever
order both come, and whatever becomes of the leader."""

from __future__ import annotations

import itertools

import pytest

from mq_broker.core.entries import DeleteGroup, Entry, MoveCursor
from mq_broker.core.machine.admission import Admit, Answer, Verdict, WaitFor, judge
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.machine.state import EPHEMERAL, SPARK, Cursor, MachineState, Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Propose, Refused
from mq_broker.storage.codec.snapshot import decode_snapshot, encode_snapshot
from mq_protocol.errors import PermissionDenied
from tests.mq_broker.storage.bed import PLACE

pytestmark = pytest.mark.long

MINE, THEIRS, NOBODY = "User:etl", "User:thief", ""
BOUNDS = WindowBounds(100)
CONSUMER = "consumer"


def move(owner: str, offset: int = 1, kind: str = SPARK, *, forward: bool = False) -> MoveCursor:
    return MoveCursor("g", offset, kind, forward, owner)


class Led:
    """A leader's machine of nine records, and the tail above it."""

    def __init__(self) -> None:
        self.machine = PartitionMachine(BOUNDS, MachineState(next_offset=9))
        self.tail: list[Entry] = []
        self.overlay = Overlay([])
        self.index = 0

    def ask(self, operation: MoveCursor | DeleteGroup, *, for_anybody: bool = False) -> Verdict:
        verdict = judge(Propose(1, operation, 0, for_anybody=for_anybody), self.machine, self.overlay, 1)
        if isinstance(verdict, Admit):
            self.index += 1
            self.tail.append(Entry(self.index, 1, self.index, verdict.operation))
            self.overlay.add(self.tail[-1])
        return verdict

    def commit(self) -> None:
        for entry in self.tail:
            self.machine.apply(entry)
            self.overlay.remove(entry)
        self.tail = []

    def done(self, operation: MoveCursor | DeleteGroup, *, for_anybody: bool = False) -> None:
        assert isinstance(self.ask(operation, for_anybody=for_anybody), Admit)
        self.commit()

    def begin_anew(self) -> None:
        """From a snapshot that went over the wire."""
        snapshot = Snapshot(self.index, 1, self.index, self.machine.state())
        self.machine = PartitionMachine(BOUNDS, decode_snapshot(PLACE, encode_snapshot(PLACE, snapshot)).state)
        self.tail, self.overlay = [], Overlay([])

    @property
    def cursor(self) -> Cursor:
        return self.machine.cursors["g"]

    def refuses(self, operation: MoveCursor, *, for_anybody: bool = False) -> bool:
        verdict = self.ask(operation, for_anybody=for_anybody)
        return (
            isinstance(verdict, Answer)
            and isinstance(verdict.result, Refused)
            and isinstance(verdict.result.error, PermissionDenied)
        )


def test_whoever_moves_a_querys_cursor_first_is_the_only_one_who_moves_it() -> None:
    led = Led()
    led.done(move(MINE, 3))
    for attempt in (
        move(THEIRS, 5),
        move(NOBODY, 5),
        move(THEIRS, 5, CONSUMER, forward=True),
        move(THEIRS, 5, EPHEMERAL, forward=True),
        move(THEIRS, 3, CONSUMER, forward=True),
        move(THEIRS, 99),  # where the log ends is not told
    ):
        assert led.refuses(attempt), attempt
    assert (led.tail, led.cursor.offset, led.cursor.owner) == ([], 3, MINE)
    led.done(move(MINE, 1))
    assert led.cursor.offset == 1


def test_two_who_come_at_once_are_not_both_first() -> None:
    for kind in (SPARK, CONSUMER):
        led = Led()
        assert isinstance(led.ask(move(MINE, 3)), Admit)
        assert led.ask(move(THEIRS, 5, kind)) == WaitFor(1)
        assert isinstance(led.ask(move(MINE, 4)), Admit), "its owner waits for nothing"
        led.commit()
        assert led.refuses(move(THEIRS, 5, kind))


def test_consumers_of_several_users_move_their_group_and_wait_for_no_entry_of_each_other() -> None:
    """Who has begun it is noted once: it counts for that one's quota."""
    led = Led()
    for offset, owner in enumerate((NOBODY, MINE, THEIRS, NOBODY), 1):
        assert led.ask(move(owner, offset, CONSUMER, forward=True)) == Admit(
            move(owner, offset, CONSUMER, forward=True)
        )
    led.commit()
    assert (led.cursor.offset, led.cursor.owner) == (4, MINE)
    for offset, owner in enumerate((THEIRS, MINE, NOBODY), 5):
        assert led.ask(move(owner, offset, EPHEMERAL)) == Admit(move("", offset, EPHEMERAL))
    led.begin_anew()
    assert led.cursor.owner == MINE


def test_who_has_begun_a_group_of_consumers_does_not_own_a_query_of_that_name_and_the_other_way() -> None:
    led = Led()
    led.done(move(THEIRS, 1, CONSUMER))
    led.done(move(MINE, 2))
    assert led.cursor.owner == MINE
    assert led.refuses(move(THEIRS, 3))
    led.done(move(MINE, 4, CONSUMER))
    led.done(move(THEIRS, 5, CONSUMER))
    assert (led.cursor.offset, led.cursor.owner) == (5, MINE)
    led.done(move(THEIRS, 6))
    assert led.cursor.owner == THEIRS


def test_a_group_that_is_being_deleted_is_waited_for() -> None:
    led = Led()
    led.done(move(MINE, 3))
    assert isinstance(led.ask(DeleteGroup("g")), Admit)
    assert led.ask(move(THEIRS, 5)) == WaitFor(2)
    assert isinstance(led.ask(move(MINE, 2, CONSUMER, forward=True)), Answer), "a late word begins no group anew"
    led.commit()
    led.done(move(THEIRS, 5))
    assert led.cursor.owner == THEIRS
    assert led.refuses(move(MINE, 1))


def test_what_nobody_owns_is_taken_over_by_who_comes_first_with_a_name() -> None:
    led = Led()
    led.done(move(NOBODY, 3))
    led.done(move(MINE, 4))
    assert led.cursor.owner == MINE
    assert led.refuses(move(THEIRS, 5))


def test_a_cursor_that_a_snapshot_has_without_an_owner_is_taken_over() -> None:
    led = Led()
    led.machine.apply(Entry(1, 1, 1, MoveCursor("g", 3, SPARK)))
    led.begin_anew()
    led.done(move(THEIRS, 5))
    assert led.cursor.owner == THEIRS


def test_who_may_move_for_anybody_does_and_takes_nothing() -> None:
    led = Led()
    led.done(move(MINE, 3))
    led.done(move("User:admin", 4), for_anybody=True)
    assert (led.cursor.offset, led.cursor.owner) == (4, MINE)
    assert led.refuses(move("User:admin", 4))
    led.done(move(MINE, 5))


def test_a_consumer_of_the_owner_takes_the_group_over_and_all_may_read_in_it_then() -> None:
    led = Led()
    led.done(move(MINE, 3))
    led.done(move(MINE, 5, CONSUMER, forward=True))
    assert (led.cursor.kind, led.cursor.owner) == (CONSUMER, MINE)
    led.done(move(THEIRS, 6, CONSUMER, forward=True))


def test_the_owner_stays_over_failover_and_snapshot() -> None:
    led = Led()
    led.done(move(MINE, 3))
    led.begin_anew()
    assert led.cursor.owner == MINE
    assert led.refuses(move(THEIRS, 5))


STEPS = ("mine", "theirs", "theirs consumes", "commit", "fail over", "snapshot")


@pytest.mark.parametrize("first", STEPS)
def test_in_every_order_one_owner_moves_it(first: str) -> None:
    """All orders of five steps behind the first. Once a query's move is committed, its owner alone moves the cursor."""
    for rest in itertools.product(STEPS, repeat=5):
        check_order((first, *rest))


def check_order(steps: tuple[str, ...]) -> None:
    led = Led()
    asked = {"mine": move(MINE, 1), "theirs": move(THEIRS, 2), "theirs consumes": move(THEIRS, 3, CONSUMER)}
    for step in steps:
        before = led.machine.cursors.get("g")
        match step:
            case "commit":
                led.commit()
            case "fail over":
                led.tail, led.overlay = [], Overlay([])
            case "snapshot":
                led.commit()
                led.begin_anew()
            case _:
                led.ask(asked[step])
        if before is not None and before.owner == MINE:
            assert (led.cursor.offset, led.cursor.owner) == (1, MINE), steps
