"""Queue groups within a partition's state: what other entries do to them, and which entries of theirs are written."""

from __future__ import annotations

import pytest

from mq_broker.core.entries import Append, Entry, EpochStart, Operation, Trim, Work
from mq_broker.core.machine import admission
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Propose, Refused
from mq_broker.core.work.ranges import RANGES_MAX
from mq_broker.core.work.steps import Accept, Begin, Drop, End, Lease, Reason, Step
from mq_protocol.errors import InvalidRequest, OutOfOrder, TooManyGroups
from mq_protocol.limits import QUEUE_GROUPS_PER_PARTITION_MAX

WINDOW = WindowBounds(100)


def work(*steps: Step, group: str = "q") -> Work:
    return Work(group, 1, steps)


class Log:
    """A machine and the journal that it applies. It begins with 100 records and a queue group."""

    def __init__(self) -> None:
        self.machine = PartitionMachine(WINDOW)
        self.index = 0
        self.add(Append(), 100)
        self.add(work(Begin(0), Lease(((0, 10),), "a")))

    def add(self, operation: Operation, records: int = 0) -> None:
        self.index += 1
        uuid = self.index.to_bytes(16, "big")
        self.machine.apply(Entry(self.index, 1, self.index, operation, uuid, records))

    def judged(self, operation: Operation, *tail: Entry) -> admission.Verdict:
        return admission.judge(Propose(1, operation, 1_000), self.machine, Overlay(list(tail)), 1)


def refusal(verdict: admission.Verdict) -> Exception:
    assert isinstance(verdict, admission.Answer)
    assert isinstance(verdict.result, Refused)
    return verdict.result.error


def test_no_steps_are_written_behind_a_trim_that_is_not_committed() -> None:
    """They were worked out on records that the trim settles: a send would do nothing, and be told as done."""
    log = Log()
    asked = work(Accept(((0, 5),)))
    trim = Entry(log.index + 1, 1, 0, Trim(5))
    error = refusal(log.judged(asked, trim))
    assert isinstance(error, OutOfOrder)
    assert "about to be dropped" in str(error)
    overlay = Overlay([trim])
    overlay.remove(trim)
    assert isinstance(admission.judge(Propose(1, asked, 1_000), log.machine, overlay, 1), admission.Admit)


def test_what_is_trimmed_is_settled_in_each_queue_group() -> None:
    log = Log()
    log.add(work(Begin(50), group="r"))
    log.add(Trim(5))
    assert (log.machine.work["q"].base, log.machine.work["r"].base) == (5, 50)
    assert log.machine.work["q"].totals.dropped == ((Reason.RETENTION, 5),)
    assert log.machine.work["q"].leased == 5


def test_the_first_epoch_start_after_a_recovery_ends_every_lease_and_the_next_one_ends_none() -> None:
    log = Log()
    log.add(EpochStart(1, 0, 0))
    assert log.machine.work["q"].leased == 10, "a failover ends none"
    log.add(work(Begin(0, recovery=1), Lease(((0, 7),), "a"), group="later"))
    log.add(EpochStart(1, 150, 1))
    assert log.machine.work["later"].leased == 7, "it began after that recovery"
    state = log.machine.work["q"]
    assert (state.leased, state.totals.charged, state.counts(0)) == (0, 0, (1, 0))
    assert list(state.settled.missing(0, 200)) == [(0, 100), (150, 200)], "offsets that no record has are settled"
    log.add(Append(), 10)
    log.add(work(Lease(((0, 160),), "b")))
    assert state.leased == 110
    log.add(EpochStart(2, 150, 1))
    assert log.machine.work["q"].leased == 110


def test_no_step_goes_beyond_the_log_as_it_is_when_the_entry_is_applied() -> None:
    log = Log()
    log.add(work(Accept(((0, 500),))))
    assert log.machine.work["q"].base == 100
    log.add(Append(), 5)
    assert log.machine.work["q"].base == 100


def test_a_machine_made_of_a_snapshot_goes_on_as_the_one_that_applied_all_entries() -> None:
    log = Log()
    log.add(EpochStart(1, 150, 3))
    again = Log()
    again.machine = PartitionMachine(WINDOW, log.machine.state())
    again.index = log.index
    for each in (log, again):
        each.add(Append(), 10)
        each.add(EpochStart(2, 150, 3))
        each.add(work(Lease(((0, 170),), "b"), Accept(((0, 3),)), Drop(((3, 9),), Reason.PURGED)))
    assert again.machine.state() == log.machine.state()
    assert again.machine.work["q"].frozen() == log.machine.work["q"].frozen()
    log.add(work(End()))
    assert log.machine.state().work == ()


def test_entries_of_a_queue_group_follow_each_other() -> None:
    log = Log()
    behind = Entry(9, 1, 9, work(Accept(((0, 1),))))
    assert isinstance(log.judged(work(Accept(((1, 2),))), behind), admission.Admit)


def test_an_entry_without_steps_is_not_written() -> None:
    verdict = Log().judged(work())
    assert isinstance(verdict, admission.Answer)
    assert not isinstance(verdict.result, Refused)


@pytest.mark.parametrize(
    "steps",
    [
        [Accept(((3, 5), (4, 6)))],
        [Lease(((3, 3),), "a")],
        [Accept(tuple((2 * n, 2 * n + 1) for n in range(RANGES_MAX // 2 + 1)))] * 2,
        [Lease(((n, n + 1),), "m" * 250) for n in range(5_000)],
    ],
)
def test_an_entry_with_wrong_ranges_or_above_its_bounds_is_not_written(steps: list[Step]) -> None:
    assert isinstance(refusal(Log().judged(work(*steps))), InvalidRequest)


def test_a_partition_keeps_so_many_queue_groups_and_refuses_one_more_by_name() -> None:
    log = Log()
    for number in range(1, QUEUE_GROUPS_PER_PARTITION_MAX):
        log.add(work(Begin(0), group=f"g{number}"))
    verdict = log.judged(work(Begin(0), group="r"))
    assert isinstance(refusal(verdict), TooManyGroups)
    assert "'r'" in str(refusal(verdict))
    assert isinstance(verdict, admission.Answer)
    assert verdict.of_absence, "a leader deposed unawares does not know of groups that have ended since"
    assert isinstance(log.judged(work(Accept(((0, 1),)))), admission.Admit)
