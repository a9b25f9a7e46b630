"""What members ask of one queue group in one partition, and what they are told."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mq_broker.broker.queues.policy.ready_records import Run
from mq_broker.core.work.ranges import Ranges
from mq_broker.core.work.settling import Answer, SendDead, Settle
from mq_broker.core.work.state import NO_MARK
from mq_broker.core.work.steps import LeaseId, Step
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.queues.settings import Order


@dataclass(frozen=True, slots=True)
class Extend:
    """The member works on these records still: their time begins anew."""

    lease: LeaseId
    member: str
    ranges: Ranges


Item: TypeAlias = Settle | Extend


@dataclass(frozen=True, slots=True)
class LentRun:
    """Records that were lent, this time included, and failed equally often."""

    first: int
    end: int
    deliveries: int
    failures: int


def lent_runs(runs: Iterable[Run]) -> tuple[LentRun, ...]:
    """What is lent, by what the state knows of it."""
    return tuple(LentRun(a, b, (mark or NO_MARK).deliveries + 1, (mark or NO_MARK).failures) for a, b, mark in runs)


@dataclass(frozen=True, slots=True)
class Lent:
    """What a member is told. `lease` None: nothing was lent. `gone`: of the leases that it named, those of which it has
    nothing any more. `ready`: there is more. `order`, `order_by`: of the group. `bytes`: of what was lent, if the
    request had a bound."""

    lease: LeaseId | None = None
    runs: tuple[LentRun, ...] = ()
    lease_ms: int = 0
    ready: bool = False
    gone: tuple[LeaseId, ...] = ()
    order: Order = Order.NONE
    order_by: str = ""
    bytes: int = 0


class Asking(ABC):
    """A member that wants to be lent records, or to know whether there are any (`records_max` 0). `held`: the leases
    that it knows of, each with what it has of it, nothing for all. `filter`: what it is lent matches that; empty for
    anything. `has_room`: for records, although it may ask for none. `returns`: what it does not name goes back. `once`:
    it waits for nothing."""

    def __init__(
        self,
        member: str,
        key: bytes,
        terms: pb.WorkTerms,
        records_max: int,
        bytes_max: int,
        held: Mapping[LeaseId, Ranges],
        *,
        has_room: bool,
        returns: bool,
        once: bool,
    ) -> None:
        self.member = member
        self.key = key
        self.records_max = records_max
        self.bytes_max = bytes_max
        self.lease_ms = terms.lease_ms
        self.accept = terms.accept
        self.working = terms.working
        self.priority = terms.priority
        self.filter = terms.filter
        self.held = held
        self.has_room = has_room
        self.returns = returns
        self.once = once
        self.reconciled = not (returns or held)  # its other leases have gone back
        self.in_flight = False  # its answer waits for an entry on its way; it does not wait to be lent anything more
        self.end = -1  # of the log, when it was first looked at
        self.looking = False  # there is more to look at for it, in another turn

    def note_chosen(self, records: int, size: int) -> None:
        """An entry is on its way that lends it so many records and bytes: it is answered once that is committed."""
        self.in_flight = True

    @abstractmethod
    def note_judged(self) -> None:
        """It was looked for what it may be lent, and there is nothing for now."""

    @abstractmethod
    def answer(self, lent: Lent) -> None:
        """What it is told."""

    @abstractmethod
    def refuse(self, error: TritonMQError) -> None:
        """It is lent nothing, for this."""


class Settling(ABC):
    """A request to settle. Owns which of its items were not judged yet (`todo`). `overtaken`: those of them of which an
    earlier record is to be settled first, each with what of it is known to be lost."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = list(items)
        self.overtaken: dict[int, Ranges] = {}
        self.todo = dict.fromkeys(range(len(items)))

    @abstractmethod
    def answer(self, number: int, answer: Answer) -> None:
        """What became of one item, for good."""

    def refuse(self, error: TritonMQError) -> None:
        """What was not judged yet is not done."""
        for number in list(self.todo):
            self.answer(number, Answer(error=error))
        self.todo.clear()


class OwnSteps:
    """Steps that the leader wants to write by itself, for one life of the group. Owns who waits for them."""

    def __init__(self, life: int, steps: tuple[Step, ...]) -> None:
        self.life = life
        self.steps = steps
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self, error: TritonMQError | None = None) -> None:
        if self.written.done():
            return
        if error is None:
            self.written.set_result(None)
        else:
            self.written.set_exception(error)


class Sending:
    """Dead letters that are staged, of one life of the group. Owns the answer. An error that is raised is of the entry:
    whether they are decided is not known then."""

    def __init__(self, life: int, send: SendDead) -> None:
        self.life = life
        self.send = send
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def lost(self) -> None:
        """Their records are not doomed any more."""
        self.done(Answer(lost=self.send.ranges))

    def done(self, answer: Answer, error: TritonMQError | None = None) -> None:
        if self.answered.done():
            return
        if error is None:
            self.answered.set_result(answer)
        else:
            self.answered.set_exception(error)
