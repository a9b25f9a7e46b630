"""What is put into one entry of a queue group, and who is told what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mq_broker.broker.queues.group.requests import Asking, Lent, OwnSteps, Sending, Settling
from mq_broker.broker.queues.policy.ready_records import RANGES_PER_LEASE_MAX, Choice
from mq_broker.core.messages import Done, Refused, Result
from mq_broker.core.work.ranges import RANGES_MAX, joined
from mq_broker.core.work.settling import Answer, Backoff, Settle
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.core.work.steps import (
    ENTRY_BYTES_MAX,
    Accept,
    Begin,
    Drop,
    End,
    Lease,
    LeaseId,
    Park,
    Reason,
    Step,
    ranges_of,
    step_bytes,
)
from mq_protocol.errors import TritonMQError
from mq_protocol.queues.settings import DeadLetter, QueueSettings

ROOM_FOR_LEASE: Final = 4 * RANGES_PER_LEASE_MAX
"""Ranges, more than one lease has: with fewer left nobody is lent anything more by the entry."""


@dataclass(slots=True)
class Lending:
    """`lease`: as it is named once the entry is committed."""

    asking: Asking
    choice: Choice
    lease: LeaseId
    lease_ms: int


@dataclass(slots=True)
class Draft:
    """What is put into one entry, and who waits for it. `at`: the epoch and index that it will have. `alone`: nothing
    is judged before it is known what became of it."""

    at: tuple[int, int]
    settles: list[Settle] = field(default_factory=list)
    settlers: list[tuple[Settling, int] | None] = field(default_factory=list)  # None: this leader itself
    extended: list[tuple[Settling, int, Answer]] = field(default_factory=list)
    reconciled: list[tuple[Asking, bool, int]] = field(default_factory=list)  # all of it? up to which settle
    lendings: list[Lending] = field(default_factory=list)
    gone: list[tuple[Asking, tuple[LeaseId, ...]]] = field(default_factory=list)
    told: list[tuple[Asking, Lent]] = field(default_factory=list)  # who is lent nothing by it
    sendings: list[tuple[Sending, Answer]] = field(default_factory=list)
    own: OwnSteps | None = None
    answers: list[tuple[Settling, int, Answer]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    ranges: int = 0  # that requests name
    written_ranges: int = 0
    written_bytes: int = 0
    alone: bool = False
    ahead: bool = False  # its steps are in the leader's own view
    result: Result | None = None  # once it is known what became of it

    @property
    def in_doubt(self) -> bool:
        """Whether an answer rests on something not being here."""
        return bool(self.gone) or any(answer.lost for _, _, answer in self.answers)

    @property
    def lends(self) -> bool:
        """Whether there is room for one more lease."""
        return self.written_ranges + ROOM_FOR_LEASE <= RANGES_MAX and self.written_bytes <= ENTRY_BYTES_MAX // 2

    def has_room(self, steps: Sequence[Step]) -> bool:
        """Whether the entry may have these, too."""
        ranges = self.written_ranges + sum(len(ranges_of(step)) for step in steps)
        return ranges <= RANGES_MAX and self.written_bytes + sum(map(step_bytes, steps)) <= ENTRY_BYTES_MAX

    def add(self, steps: Iterable[Step], state: WorkState, end: int) -> None:
        """Behind the others, in the leader's own view from now on. `end`: of the log."""
        self.ahead = True
        for step in steps:
            state.apply(step, self.next_lease, end)
            self.steps.append(step)
            self.written_ranges += len(ranges_of(step))
            self.written_bytes += step_bytes(step)

    @property
    def next_lease(self) -> LeaseId:
        """By the step that comes next."""
        return LeaseId(*self.at, len(self.steps))

    def tell(self, asking: Asking, lent: Lent) -> None:
        """It is told so once this is committed: what it did not name may go back by it."""
        asking.in_flight = True
        self.told.append((asking, lent))

    def lend(self, lending: Lending, state: WorkState, end: int) -> Sequence[Step]:
        """To this member what was chosen for it. Returns the steps that do so."""
        asking, choice = lending.asking, lending.choice
        self.lendings.append(lending)
        ranges = joined(choice.ranges)
        steps: list[Step] = [Lease(ranges, asking.member), *([Accept(ranges)] if asking.accept else ())]
        self.add(steps, state, end)
        return steps

    @property
    def error(self) -> TritonMQError | None:
        """Why it was refused; None if it was not."""
        return self.result.error if isinstance(self.result, Refused) else None


DONE: Final = Done(0)
"""The result of a draft that nothing is written for."""


def tell_sendings(draft: Draft, error: TritonMQError | None) -> None:
    """What became of the dead letters."""
    for sending, answer in draft.sendings:
        sending.done(answer, error)


def backoff_of(settings: QueueSettings) -> Backoff:
    """When records are lent again that failed."""
    return Backoff(settings.retry_ms, settings.retry_factor, settings.retry_ms_max)


def is_rare(own: OwnSteps) -> bool:
    """Whether a life begins or ends with these steps: they have an entry of their own."""
    return any(isinstance(step, Begin | End) for step in own.steps)


def dead_letters(doomed: list[tuple[int, int, Mark]], dead_letter: DeadLetter) -> list[Step]:
    """What becomes of doomed records that are sent nowhere, by the group's setting."""
    ascending = sorted(doomed, key=lambda run: run[0])
    if not ascending:
        return []
    if dead_letter is DeadLetter.PARK:
        return [Park(joined((a, b) for a, b, _ in ascending))]
    rejected = joined((a, b) for a, b, mark in ascending if mark.rejected)
    failed = joined((a, b) for a, b, mark in ascending if not mark.rejected)
    steps = ((rejected, Reason.REJECTED), (failed, Reason.DELIVERY_LIMIT))
    return [Drop(ranges, reason) for ranges, reason in steps if ranges]
