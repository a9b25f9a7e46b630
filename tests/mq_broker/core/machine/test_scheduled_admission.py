"""What is admitted of scheduled batches: which are published, cancelled or carried, and what has to wait."""

from __future__ import annotations

from typing import Any

from mq_broker.core.entries import SCHEDULED, Append, Carry, Discard, Entry, Operation, Publish, Schedule
from mq_broker.core.machine.admission import Admit, Answer, Verdict, WaitFor, judge
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Done, Propose, Refused, Room
from mq_protocol.errors import Overloaded, QueueFull

A, B, C, D = (bytes(15) + bytes([number]) for number in range(1, 5))


def entry(index: int, operation: Operation, uuid: bytes = bytes(16)) -> Entry:
    return Entry(index, 1, index, operation, uuid, 2)


def machine() -> PartitionMachine:
    """A is due at 100, B at 200, C at 300; they are entries 1, 2 and 3."""
    made = PartitionMachine(WindowBounds(1_000, None))
    for index, uuid in enumerate((A, B, C), 1):
        made.apply(entry(index, Schedule(100 * index), uuid))
    return made


def judged(
    operation: Operation, *tail: Entry, of: PartitionMachine | None = None, first: int = 1, **of_it: Any
) -> Verdict:
    return judge(Propose(1, operation, 0, **of_it), of or machine(), Overlay(list(tail)), first)


def test_only_what_waits_and_is_due_by_then_is_published_once() -> None:
    assert judged(Publish(SCHEDULED, 250, (B, A, C, A, D))) == Admit(Publish(SCHEDULED, 250, (B, A)))
    known = machine()
    known.apply(entry(4, Publish(SCHEDULED, 150, (A,))))
    known.apply(entry(5, Discard(SCHEDULED, (B,))))
    assert judged(Publish(SCHEDULED, 250, (A, B)), of=known) == Answer(Done(0, known.next_offset, duplicate=True))


def test_a_batch_whose_payload_a_recovery_has_lost_is_not_published() -> None:
    assert judged(Publish(SCHEDULED, 250, (A, B)), first=2) == Admit(Publish(SCHEDULED, 250, (B,)))
    assert isinstance(judged(Publish(SCHEDULED, 250, (A, B)), first=3), Answer)


def test_what_is_being_published_or_cancelled_is_waited_for() -> None:
    for on_its_way in (Publish(SCHEDULED, 150, (A,)), Discard(SCHEDULED, (A,))):
        tail = entry(7, on_its_way)
        assert judged(Publish(SCHEDULED, 250, (A, B)), tail) == WaitFor(7)
        assert judged(Discard(SCHEDULED, (A,)), tail) == WaitFor(7)
        assert judged(Carry(), tail, uuid=A) == Answer(Done(0, duplicate=True)), "it may be over by then"
    assert judged(Carry(), uuid=A) == Admit(Carry())
    assert judged(Carry(), uuid=D) == Answer(Done(0, duplicate=True))


def test_a_cancel_waits_for_a_batch_that_is_on_its_way_and_takes_none_of_another_kind() -> None:
    assert judged(Discard(SCHEDULED, (D,)), entry(8, Schedule(400), D)) == WaitFor(8)
    unknown = judged(Discard(SCHEDULED, (D,)))
    assert isinstance(unknown, Answer)
    assert unknown.of_absence, "whoever was deposed unawares does not know"
    assert judged(Discard(SCHEDULED, (D, B))) == Admit(Discard(SCHEDULED, (B,)))


def test_as_many_wait_as_may_be_with_those_on_their_way() -> None:
    tail = entry(7, Schedule(400), b"x" * 16)
    assert judged(Schedule(500), tail, uuid=D, record_count=1, scheduled_max=5) == Admit(Schedule(500))
    full = judged(Schedule(500), tail, uuid=D, record_count=1, scheduled_max=4)
    assert isinstance(full, Answer)
    assert isinstance(full.result, Refused)
    assert isinstance(full.result.error, Overloaded)


def test_a_full_queue_takes_no_records_and_lets_what_was_scheduled_come() -> None:
    known = machine()
    room = Room(0, "g", 1)
    refused = judged(Append(), of=known, uuid=D, record_count=1, room=room)
    assert isinstance(refused, Answer)
    assert isinstance(refused.result, Refused)
    assert isinstance(refused.result.error, QueueFull)
    assert judged(Schedule(500), of=known, uuid=D, record_count=1, room=room, scheduled_max=9) == Admit(Schedule(500))
