"""Groups in a partition's state: what a deletion leaves, and which groups are to end by themselves."""

from __future__ import annotations

from mq_broker.core.entries import DeleteGroup, Entry, MoveCursor, Operation
from mq_broker.core.machine import admission
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.machine.state import EPHEMERAL
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Propose, Refused
from mq_protocol.errors import TooManyGroups
from mq_protocol.limits import GROUPS_PER_PARTITION_MAX

WINDOW = WindowBounds(100)


def applied(machine: PartitionMachine, *operations: Operation) -> PartitionMachine:
    for index, operation in enumerate(operations, start=1):
        machine.apply(Entry(index, 1, index, operation))
    return machine


def test_a_deleted_group_has_no_cursor_and_may_begin_again_further_back() -> None:
    machine = applied(
        PartitionMachine(WINDOW), MoveCursor("g", 7, "consumer", forward=True), DeleteGroup("g"), DeleteGroup("h")
    )
    assert machine.cursors == {}
    applied(machine, MoveCursor("g", 3, "consumer", forward=True))
    assert machine.cursors["g"].offset == 3


def test_a_state_that_is_taken_up_knows_which_groups_are_ephemeral() -> None:
    machine = applied(
        PartitionMachine(WINDOW), *(MoveCursor(g, 0, EPHEMERAL) for g in "abc"), MoveCursor("k", 0, "consumer")
    )
    applied(machine, DeleteGroup("a"), MoveCursor("b", 1, "consumer"))
    for known in (machine, PartitionMachine(WINDOW, machine.state())):
        assert known.ephemeral == {"c"}
        assert sorted(known.cursors) == ["b", "c", "k"]


def test_a_partition_keeps_the_cursors_of_so_many_groups_and_refuses_one_more_by_name() -> None:
    others = (MoveCursor(f"g{number}", 0, "consumer") for number in range(GROUPS_PER_PARTITION_MAX - 2))
    machine = applied(PartitionMachine(WINDOW), MoveCursor("a", 0, "consumer"), *others)

    def judged(group: str) -> object:
        propose = Propose(1, MoveCursor(group, 0, "spark"), 1_000)
        return admission.judge(propose, machine, Overlay([]), 1)

    assert isinstance(judged("b"), admission.Admit)
    applied(machine, MoveCursor("b", 0, "consumer"))
    refused = judged("c")
    assert isinstance(refused, admission.Answer)
    assert refused.of_absence, "a leader deposed unawares does not know of groups that were deleted since"
    assert isinstance(refused.result, Refused)
    assert isinstance(refused.result.error, TooManyGroups)
    assert f"{GROUPS_PER_PARTITION_MAX} groups" in str(refused.result.error)
    assert "delete unused groups" in str(refused.result.error)
    assert isinstance(judged("a"), admission.Admit), "those that are there go on"
    applied(machine, DeleteGroup("a"))
    assert isinstance(judged("c"), admission.Admit)
