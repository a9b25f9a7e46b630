"""One member's session at one partition's leader: how much it may be lent, what it has asked, what it is to be told."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.queues.group.led_group import LedGroup
from mq_broker.broker.queues.group.requests import Asking, Item, Lent, Settling
from mq_broker.core.work.ranges import Ranges
from mq_broker.core.work.settling import Answer
from mq_broker.core.work.steps import LeaseId
from mq_broker.rpc.callers import own_member
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, Overloaded, TritonMQError
from mq_protocol.limits import CREDIT_BYTES_MAX, CREDIT_RECORDS_MAX, LEASES_HELD_MAX, SETTLES_MAX

UNANSWERED_MAX: Final = 2 * SETTLES_MAX
"""Ranges that one session settles and that wait for their answers. More are refused: the member asks again."""

UNANSWERED_PER_BROKER_MAX: Final = 500_000

Check: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Whether an ack with outputs may be judged. Raises the `TritonMQError` for which nothing of it is done."""

_NO_CHECKS: Final[Mapping[int, Check]] = {}

UNREAD_MAX: Final = 100
"""Ranges of leases that wait to be told to a session. While there are more it is lent nothing: it may never read."""


@dataclass(slots=True)
class Load:
    """How many sessions are open at this broker, and how many ranges of their settles wait for an answer."""

    sessions: int = 0
    settles: int = 0


@dataclass(frozen=True, slots=True)
class NumberedAnswer:
    """Of one settle."""

    number: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Ready:
    """Whether more is ready than the credit allows."""

    more: bool


@dataclass(frozen=True, slots=True)
class CreditHolds:
    """The credit that took some back, or was for once: nothing more is lent by it."""

    records: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Leases of which the member has nothing any more."""

    leases: tuple[LeaseId, ...]


@dataclass(frozen=True, slots=True)
class Active:
    """Whether the member is the one that is lent records."""

    now: bool


News: TypeAlias = NumberedAnswer | Lent | Ready | CreditHolds | Gone | Active | TritonMQError


def weight(news: News) -> int:
    """In ranges: what it takes of memory."""
    match news:
        case NumberedAnswer(_, answer):
            return 1 + len(answer.lost) + sum(1 + len(ranges) for _, ranges in answer.pulled)
        case Lent():
            return 1 + len(news.runs)
        case Gone(leases):
            return len(leases)
        case _:
            return 1


class Standing(Asking):
    """What a session wants to be lent, for as long as it wants it. Its session hears at once what comes of it."""

    def __init__(
        self,
        session: Session,
        records_max: int,
        bytes_max: int,
        held: dict[LeaseId, Ranges],
        *,
        returns: bool,
        once: bool,
    ) -> None:
        super().__init__(
            session.member,
            session.key,
            session.terms,
            records_max,
            bytes_max,
            held,
            has_room=bool(records_max) or session.watches,
            returns=returns,
            once=once,
        )
        self._session = session

    def note_chosen(self, records: int, size: int) -> None:
        super().note_chosen(records, size)
        self._session.chosen(self, records, size)

    def note_judged(self) -> None:
        if self.records_max:
            self._session.is_dry()

    def answer(self, lent: Lent) -> None:
        self._session.answered(self, lent)

    def refuse(self, error: TritonMQError) -> None:
        self._session.refused(self, error)


class Spoken(Settling):
    """Settles of a session, by number. Each is answered by itself, as soon as it is judged: before what the same entry
    lends."""

    def __init__(self, numbered: Mapping[int, Item], tell: Callable[[int, int, Answer], None]) -> None:
        super().__init__(list(numbered.values()))
        self._numbers = list(numbered)
        self._tell = tell
        self._weights = [max(len(item.ranges), 1) for item in numbered.values()]

    @property
    def weight(self) -> int:
        """In ranges, of what was not judged yet."""
        return sum(self._weights[number] for number in self.todo)

    def answer(self, number: int, answer: Answer) -> None:
        self._tell(self._numbers[number], self._weights[number], answer)


class Session:
    """Owns its credit, and what is to be told. `news`: called with what it weighs when there is more. What is lent is
    pushed by this session or by none: what comes for it once it is over goes back when its member comes again.

    `records`, `bytes`: that it may be lent in all, and `lent`, `lent_bytes`: that it was, what is on its way (`coming`)
    among it. `claims`: what the member says that it has, until that was compared; later, leases that it wants to be
    compared. `compared`: all that it does not name has gone back. `once`: its credit is for one lease. `lasting`: what
    its member has outlives it.
    """

    def __init__(
        self,
        number: int,
        partition: Partition,
        opened: pb.WorkOpen,
        claims: dict[LeaseId, Ranges],
        terms: pb.WorkTerms,
        news: Callable[[Session, int], None],
        load: Load,
    ) -> None:
        self.number = number
        self.partition = partition
        self.group = opened.group
        self.member = own_member(opened.member)
        self.key = opened.member_key
        self.lasting = opened.lasting
        self.terms = terms
        self.watches = False
        self.over = False
        self._once = False
        self.told: deque[News] = deque()
        self._unread = 0
        self.settles = 0  # spoken so far
        self._gathering: LedGroup
        self._news = news
        self._load = load
        self._claims = claims
        self.compared = False
        self._records = self._bytes = self._lent = self._lent_bytes = 0
        self._standing: Standing | None = None
        self._coming: dict[Standing, tuple[int, int]] = {}  # with how many records and bytes were chosen for it
        self._told_ready: bool | None = None
        self._told_active: bool | None = None
        self._echo: int | None = None
        self._spoken: list[Spoken] = []
        self._with_outputs: Spoken | None = None
        self._checking: asyncio.Task[None] | None = None
        self._unanswered = 0

    @property
    def priority(self) -> int:
        return self.terms.priority

    def begin(self, led_group: LedGroup) -> None:
        """From now on it is asked for what the member wants, and at once what of its claims holds."""
        self._gathering = led_group
        led_group.open_session(self)
        self._ask()

    # ------------------------------------------------------------------ what the member says

    def change_terms(self, terms: pb.WorkTerms) -> None:
        """For what is lent from now on."""
        self.terms = terms
        self._gathering.works_on(self.member, terms.working)
        if self._standing is not None and not self._standing.in_flight:
            self._drop(self._standing)
        self._ask()

    def _drop(self, standing: Standing) -> None:
        """It waits no longer."""
        self._note_compared(standing)
        self._gathering.leave(standing)
        self._standing = None

    def _note_compared(self, standing: Standing) -> None:
        if standing.reconciled:
            self.compared = self.compared or standing.returns
            if standing.held is self._claims:
                self._claims = {}

    def set_credit(self, credit: pb.WorkCredit) -> None:
        """Raises `InvalidRequest` for what nobody can mean."""
        if min(credit.records, credit.bytes) < 0:
            raise InvalidRequest(f"a credit of {credit.records} records and {credit.bytes} bytes is below 0")
        records, size = credit.records - self._lent, credit.bytes - self._lent_bytes
        if records > CREDIT_RECORDS_MAX or size > CREDIT_BYTES_MAX:
            raise InvalidRequest(
                f"a credit of {records} more records and {size} more bytes is above {CREDIT_RECORDS_MAX} and "
                f"{CREDIT_BYTES_MAX}: nobody can hold so much"
            )
        if credit.recall or credit.once:
            self._echo = credit.records
        asks_anew = credit.once or self._once or self.lasting
        if asks_anew and self._standing is not None and not self._standing.in_flight:
            self._drop(self._standing)
        self._records, self._bytes, self.watches = credit.records, credit.bytes, credit.watch
        self._once = credit.once
        self._tell_credit()
        self._ask()

    def check(self, leases: Iterable[LeaseId]) -> None:
        """Which of these are the member's still is compared with the next entry."""
        claims = {**self._claims, **{lease: self._claims.get(lease, ()) for lease in leases}}
        if len(claims) > max(LEASES_HELD_MAX, len(self._claims)):
            raise Overloaded(
                f"{len(self._claims)} leases of this session are not compared yet, and at most {LEASES_HELD_MAX} may "
                "wait for that: open another session with those that are held"
            )
        self._claims = claims
        self.change_terms(self.terms)

    def settle(self, items: Sequence[Item], checks: Mapping[int, Check] = _NO_CHECKS) -> None:
        """They are numbered on from those before. Raises nothing: what cannot be taken is answered. `checks`: of acks
        with outputs, by their places among the items. Nothing else waits for a check."""
        first, self.settles = self.settles + 1, self.settles + len(items)
        at_once = {first + at: item for at, item in enumerate(items) if at not in checks}
        if at_once:
            self._take(Spoken(at_once, self._answered))
        for at, check in checks.items():
            self._take(Spoken({first + at: items[at]}, self._answered), check)

    def _take(self, spoken: Spoken, check: Check | None = None) -> None:
        waits = spoken.weight
        self._load.settles += waits
        self._unanswered += waits
        if self._unanswered > UNANSWERED_MAX or self._load.settles > UNANSWERED_PER_BROKER_MAX:
            spoken.refuse(
                Overloaded(
                    f"{self._unanswered} ranges that this session settles wait for their answers, and "
                    f"{self._load.settles} at this broker, more than it takes: ask again once some have come"
                )
            )
            return
        if check is not None and self._with_outputs is not None and self._with_outputs.todo:
            # A leader takes a number below the last one for done, so none may be refused for now while a later one is
            # done
            spoken.refuse(Overloaded("an ack with outputs waits for its answer in this session: say one at a time"))
            return
        self._spoken = [each for each in self._spoken if each.todo]
        self._spoken.append(spoken)
        if check is None:
            self._gathering.settle(spoken)
        else:
            self._with_outputs = spoken
            self._checking = asyncio.get_running_loop().create_task(self._check(spoken, check))

    async def _check(self, spoken: Spoken, check: Check) -> None:
        try:
            await check()
        except TritonMQError as error:
            spoken.refuse(error)
        else:
            self._gathering.settle(spoken)

    def _answered(self, number: int, waited: int, answer: Answer) -> None:
        self._unanswered -= waited
        self._load.settles -= waited
        if not self.over:
            self._tell(NumberedAnswer(number, answer))

    def close(self, *, clean: bool) -> None:
        """It is over; `clean`: its member has said so."""
        if not self.over:
            self.over = True
            self._leave(withdraw=not clean)
            self._gathering.close_session(self, clean=clean)

    def _leave(self, *, withdraw: bool) -> None:
        if self._standing is not None:
            self._drop(self._standing)
        unchecked = self._checking is not None and self._checking.cancel()
        for spoken in self._spoken:
            if withdraw or (unchecked and spoken is self._with_outputs):
                left = spoken.weight
                self._gathering.withdraw(spoken)
                self._load.settles -= left
        self._spoken.clear()
        self._coming.clear()

    # ------------------------------------------------------------------ what the leader says

    def _tell(self, news: News) -> None:
        self.told.append(news)
        self._unread += weight(news) if isinstance(news, Lent) else 0
        self._news(self, weight(news))

    def next_news(self) -> News:
        """Take out what is to be told next, if there is something."""
        news = self.told.popleft()
        if isinstance(news, Lent):
            much = self._unread > UNREAD_MAX
            self._unread -= weight(news)
            if much and self._unread <= UNREAD_MAX:
                self._ask()
        return news

    def is_dry(self) -> None:
        """Nothing is ready for its credit."""
        self._tell_ready(False)
        self._tell_active()

    def chosen(self, standing: Standing, records: int, size: int) -> None:
        """An entry is on its way that lends it so much. What else it wants it asks for now."""
        self._coming[standing] = records, size
        self._lent += records
        self._lent_bytes += size
        self._standing = None
        self._note_compared(standing)
        if standing.once:
            self._spend()
        self._ask()

    def _spend(self) -> None:
        """A credit for once is void."""
        self._once, self._records = False, self._lent

    def answered(self, standing: Standing, lent: Lent) -> None:
        coming = self._coming.pop(standing, None)
        if self.over or (coming is None and standing is not self._standing):
            return  # it is over: its member says what it has when it comes again
        if coming is not None:
            self._lent -= coming[0]
            self._lent_bytes -= coming[1]
        else:
            self._standing = None
            self._note_compared(standing)
        if lent.gone:
            self._tell(Gone(lent.gone))
            self._claims = {lease: held for lease, held in self._claims.items() if lease not in lent.gone}
        if lent.lease is not None:
            self._lent += sum(run.end - run.first for run in lent.runs)
            self._lent_bytes += lent.bytes
            self._told_ready = lent.ready
            self._tell(lent)
            self._tell_active()
        elif lent.ready:
            self._tell_ready(True)
        if standing.once and not lent.gone:
            self._spend()
        self._tell_credit()
        self._ask()

    def refused(self, standing: Standing, error: TritonMQError) -> None:
        if not self.over and (standing is self._standing or standing in self._coming):
            self.end(error)

    def end(self, error: TritonMQError) -> None:
        if not self.over:
            self.close(clean=False)
            self._tell(error)

    def _tell_ready(self, ready: bool) -> None:
        """What the member takes it for, unless it is told otherwise."""
        if ready is not self._told_ready:
            self._told_ready = ready
            self._tell(Ready(ready))

    def _tell_active(self) -> None:
        active = self._gathering.active
        if active is not None and (active == self.member) is not self._told_active:
            self._told_active = active == self.member
            self._tell(Active(self._told_active))

    def _tell_credit(self) -> None:
        """What was taken back, or was for once, is not lent any more."""
        if self._echo is not None and not self._coming and not self._once:
            self._tell(CreditHolds(self._echo))
            self._echo = None

    # ------------------------------------------------------------------ what it wants

    def _ask(self) -> None:
        """Have what it wants wait, once. What it has asked before is changed, if no entry is on its way for it."""
        if self.over:
            return
        records = max(self._records - self._lent, 0)
        size = self._bytes - self._lent_bytes if self._bytes else 0
        if (self._bytes and size <= 0) or self._unread > UNREAD_MAX:
            records = size = 0
        watches = self.watches and not self._told_ready and not self._coming
        asks = bool(records) or watches or self._once
        returns = not self.compared and (asks or not self.lasting)
        wants = asks or returns or bool(self._claims)
        standing = self._standing
        if standing is not None and standing.in_flight:
            return
        if standing is not None and wants:
            standing.records_max, standing.bytes_max = records, size
            standing.has_room = bool(records) or self.watches
            self._gathering.wake()
        elif standing is not None:
            self._drop(standing)
        elif wants:
            self._standing = Standing(self, records, size, self._claims, returns=returns, once=self._once)
            self._gathering.ask(self._standing)
