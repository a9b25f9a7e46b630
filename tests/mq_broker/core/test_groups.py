"""Groups in a partition's state: what a deletion leaves, and which groups are to end by themselves."""

from __future__ import annotations

from mq_broker.core.entries import DeleteGroup, Entry, MoveCursor, Operation
from mq_broker.core.machine import PartitionMachine
from mq_broker.core.state import EPHEMERAL
from mq_broker.core.window import WindowBounds

WINDOW = WindowBounds(100)


def applied(machine: PartitionMachine, *operations: Operation) -> PartitionMachine:
    for index, operation in enumerate(operations, start=1):
        machine.apply(Entry(index, 1, index, operation))
    return machine


def test_a_deleted_group_has_no_cursor_and_may_begin_again_further_back() -> None:
    machine = applied(PartitionMachine(WINDOW), MoveCursor("g", 7, "consumer", forward=True), DeleteGroup("g"), DeleteGroup("h"))
    assert machine.cursors == {}
    applied(machine, MoveCursor("g", 3, "consumer", forward=True))
    assert machine.cursors["g"].offset == 3


def test_a_state_that_is_taken_up_knows_which_groups_are_ephemeral() -> None:
    machine = applied(PartitionMachine(WINDOW), *(MoveCursor(g, 0, EPHEMERAL) for g in "abc"), MoveCursor("k", 0, "consumer"))
    applied(machine, DeleteGroup("a"), MoveCursor("b", 1, "consumer"))
    for known in (machine, PartitionMachine(WINDOW, machine.state())):
        assert known.ephemeral == {"c"}
        assert sorted(known.cursors) == ["b", "c", "k"]
