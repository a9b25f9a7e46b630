"""What members ask of one queue group in one partition, and what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mq_broker.core.work.ranges import Ranges
from mq_broker.core.work.settling import Answer, SendDead, Settle
from mq_broker.core.work.steps import LeaseId, Step
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


_NOTHING: Final[Mapping[LeaseId, Ranges]] = {}


class Asking:
    """A member that wants to be lent records, or to know whether there are any (`records_max` 0). `held`: the leases
    that it knows of, each with what it has of it, nothing for all. `filter_text`: what it is lent matches that; empty
    for anything. `watches`: it has room for records, although it asks for none. `leaving`: it will ask no more. Owns
    its answer."""

    of_session = False
    returns = True  # what it does not name

    def __init__(
        self,
        member: str,
        key: bytes,
        records_max: int,
        *,
        bytes_max: int = 0,
        lease_ms: int = 0,
        accept: bool = False,
        held: Mapping[LeaseId, Ranges] = _NOTHING,
        working: int = 1,
        priority: int = 0,
        watches: bool = False,
        leaving: bool = False,
        filter_text: str = "",
    ) -> None:
        self.member = member
        self.key = key
        self.records_max = records_max
        self.bytes_max = bytes_max
        self.lease_ms = lease_ms
        self.accept = accept
        self.held = held
        self.working = working
        self.priority = priority
        self.leaving = leaving
        self.filter = filter_text
        self.has_room = bool(records_max) or watches
        self.reconciled = False  # its other leases have gone back
        self.in_flight = False  # its answer waits for an entry on its way; it does not wait to be lent anything more
        self.judged = False  # once, at least
        self.hurry = False  # it does not wait any more
        self.end = -1  # of the log, when it was first looked at
        self.looking = False  # there is more to look at for it, in another turn
        self.answered: asyncio.Future[Lent] = asyncio.get_running_loop().create_future()

    def note_chosen(self, records: int, size: int) -> None:
        """An entry is on its way that lends it so many records and bytes: it is answered once that is committed."""
        self.in_flight = True

    def note_judged(self) -> None:
        """It was looked for what it may be lent, and there is nothing for now."""
        self.judged = True

    def answer(self, lent: Lent) -> None:
        if not self.answered.done():
            self.answered.set_result(lent)

    def refuse(self, error: TritonMQError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


class Settling:
    """A request to settle. Owns its answers, and which of its items were not judged yet (`todo`). `overtaken`: those of
    them of which an earlier record is to be settled first, each with what of it is known to be lost."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = list(items)
        self.overtaken: dict[int, Ranges] = {}
        self.todo = dict.fromkeys(range(len(items)))
        self.answers: list[Answer | None] = [None] * len(items)
        self._missing = len(items)
        self.answered: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    def answer(self, number: int, answer: Answer) -> None:
        """What became of one item, for good."""
        self._missing -= self.answers[number] is None
        self.answers[number] = answer
        if not self._missing and not self.answered.done():
            self.answered.set_result([each for each in self.answers if each is not None])

    def refuse(self, error: TritonMQError) -> None:
        """What was not judged yet is not done."""
        if len(self.todo) == len(self.items):
            if not self.answered.done():
                self.answered.set_exception(error)
        else:
            for number in self.todo:
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
