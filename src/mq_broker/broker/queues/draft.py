"""What is put into one entry of a queue group, and who is told what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mq_broker.broker.queues.holdings import Holdings
from mq_broker.broker.queues.lending import Choice, Run
from mq_broker.broker.queues.requests import Asking, OwnSteps, Sending, Settling
from mq_broker.core.work.ranges import joined
from mq_broker.core.work.run_map import RunMap
from mq_broker.core.work.settling import Answer, Backoff, Settle
from mq_broker.core.work.state import Mark
from mq_broker.core.work.steps import Begin, Drop, End, LeaseId, Park, Reason, Step
from mq_protocol.errors import TritonMQError
from mq_protocol.queue_settings import DeadLetter, QueueSettings


@dataclass(slots=True)
class Lending:
    asking: Asking
    choice: Choice
    lent: Answer = field(default_factory=Answer)


@dataclass(slots=True)
class Draft:
    """What is put into one entry, and who waits for it."""

    settles: list[Settle] = field(default_factory=list)
    settlers: list[tuple[Settling, int] | None] = field(default_factory=list)  # None: this leader itself
    extended: list[tuple[Settling, int, Answer]] = field(default_factory=list)
    reconciled: list[tuple[Asking, bool, int]] = field(default_factory=list)  # all of it? up to which settle
    lendings: list[Lending] = field(default_factory=list)
    gone: list[tuple[Asking, tuple[LeaseId, ...]]] = field(default_factory=list)
    doomed: list[tuple[int, int, Mark]] = field(default_factory=list)
    sendings: list[tuple[Sending, Answer]] = field(default_factory=list)
    own: OwnSteps | None = None
    answers: list[tuple[Settling, int, Answer]] = field(default_factory=list)
    steps: tuple[Step, ...] = ()
    ranges: int = 0

    @property
    def in_doubt(self) -> bool:
        """Whether an answer rests on something not being here."""
        return bool(self.gone) or any(answer.lost for _, _, answer in self.answers)


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


def runs_of(lending: Lending, lease: LeaseId, holdings: Holdings, start: int) -> list[Run]:
    """What of it was lent by that lease, now that the entry is committed. `start`: of the log; what is before it was
    lost meanwhile."""
    lent: RunMap[bool] = RunMap((first, end, True) for first, end in joined(lending.lent.lent))
    runs: list[Run] = []
    for first, end, mark in lending.choice.runs:
        if lending.asking.accept:
            runs += [(max(a, start), b, mark) for a, b, _ in lent.covered(((first, end),)) if start < b]
        else:
            runs += [(a, b, mark) for a, b in holdings.of(lease, ((first, end),))]
    return runs
