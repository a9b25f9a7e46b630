"""A member that asks and waits. The test is the brokers; the event loop is real."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from mq_client.cluster.deadline import Deadline
from mq_client.cluster.loop import EventLoop
from mq_client.errors import (
    InternalError,
    InvalidRequest,
    LeaseLost,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    Unreachable,
)
from mq_client.queueing.borrowing import Borrower
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.error_messages import to_wire
from tests.mq_client.cluster.scripted import Clock, Scripted, told, topic_info

WITHIN = 30_000.0
LEASE = pb.LeaseId(leader_epoch=1, entry=7)

Says = Callable[[pb.SessionRequest], Sequence[pb.SessionResponse]]


class _Call:
    """The broker's end of a stream. It answers each request as it is told to; None: the stream ends."""

    def __init__(self, loop: Loop, address: str) -> None:
        self._loop, self._address = loop, address
        self.told: asyncio.Queue[Any] = asyncio.Queue()

    async def write(self, request: pb.WorkRequest) -> None:
        for said in request.sessions:
            self._loop.said.append((self._address, said))
            for response in self._loop.says(said):
                response.session = said.session
                self.told.put_nowait(Envelope(pb.WorkHeader(sessions=[response]), ()))

    async def read(self) -> Any:
        return await self.told.get()

    def end(self) -> None:
        self.told.put_nowait(None)


class Loop(EventLoop):
    """`says`: what brokers answer. `said`: what they heard, with their addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.says: Says = lambda _: ()
        self.said: list[tuple[str, pb.SessionRequest]] = []
        self.calls: list[_Call] = []

    @contextlib.asynccontextmanager
    async def opened(self, _method: str, _header: object, address: str, *_: object) -> AsyncIterator[Any]:
        self.calls.append(_Call(self, address))
        yield self.calls[-1]

    def heard(self) -> list[tuple[str, pb.SessionRequest]]:
        """By all brokers since the last call, but that a session is opened or closed."""
        said, self.said = self.said, []
        return [(at, one) for at, one in said if not (one.HasField("open") or one.close)]


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.stop()


class Leaders(Scripted):
    def __init__(self, leader: int = 1) -> None:
        super().__init__(Clock())
        self.lead(leader)

    def lead(self, leader: int, epoch: int = 1) -> None:
        """Everybody has heard of it."""
        self.brokers_say = {f"b:{number}": told(topic_info(leader, epoch=epoch)) for number in (1, 2, 3)}


def borrower(leaders: Leaders, loop: Loop) -> Borrower:
    opened = pb.WorkOpen(topic="t", group="g", member="m", member_key=b"k" * 16, lasting=True)
    return Borrower(leaders, opened, pb.WorkTerms(lease_ms=5_000), loop)


def lends(first: int, records: int) -> Says:
    """So many, in answer to a credit."""

    def say(said: pb.SessionRequest) -> list[pb.SessionResponse]:
        if not said.HasField("credit"):
            return [pb.SessionResponse(ready=True)]
        lease = pb.LeaseResponse(lease=LEASE, ranges=[first, records], deliveries=[1], failures=[0])
        return [pb.SessionResponse(lease=lease), pb.SessionResponse(credit=said.credit.records)]

    return say


def test_each_question_is_a_credit_for_once_beyond_what_was_lent_and_names_what_is_held(loop: Loop) -> None:
    member = borrower(Leaders(), loop)
    loop.says = lends(0, 3)
    assert list(member.lend(5, [], Deadline(WITHIN)).ranges) == [0, 3]
    opened = loop.said[0][1]
    assert (opened.open.lasting, opened.terms.without_rows, opened.terms.lease_ms) == (True, True, 5_000)
    loop.heard()
    loop.says = lambda said: [pb.SessionResponse(credit=said.credit.records)]
    assert member.lend(4, [LEASE], Deadline(WITHIN)) == pb.LeaseResponse()
    [(_, asked)] = loop.heard()
    assert asked == pb.SessionRequest(session=1, check=[LEASE], credit=pb.WorkCredit(records=7, once=True))


def test_a_leader_that_is_none_any_more_is_left_for_the_one_that_is(loop: Loop) -> None:
    leaders = Leaders(1)
    member = borrower(leaders, loop)
    loop.says = lends(0, 3)
    member.lend(5, [], Deadline(WITHIN))
    leaders.lead(2, epoch=2)
    at_two = lends(3, 1)
    loop.heard()

    def say(said: pb.SessionRequest) -> Sequence[pb.SessionResponse]:
        at_one = loop.said[-1][0] == "b:1"
        return [pb.SessionResponse(error=to_wire(NotLeader("not here")))] if at_one else at_two(said)

    loop.says = say
    assert list(member.lend(5, [LEASE], Deadline(WITHIN)).ranges) == [3, 1]
    first, *_, last = [(at, said.credit.records) for at, said in loop.heard()]
    assert (first, last) == (("b:1", 8), ("b:2", 5))


def test_a_session_that_broke_while_nothing_was_asked_is_opened_anew_and_nobody_is_told(loop: Loop) -> None:
    member = borrower(Leaders(), loop)
    loop.says = lends(0, 3)
    member.lend(5, [], Deadline(WITHIN))
    over = pb.SessionResponse(session=1, error=to_wire(Unreachable("the leader goes")))
    loop.call(loop.calls[0].told.put_nowait, Envelope(pb.WorkHeader(sessions=[over]), ()))
    settle_down(loop)
    loop.heard()
    assert list(member.lend(5, [], Deadline(WITHIN)).ranges) == [0, 3]
    assert [said.credit.records for _, said in loop.heard()] == [5]


def settle_down(loop: Loop) -> None:
    """Wait until all that is due on the loop is done."""
    done = threading.Event()

    async def others() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        done.set()

    loop.call(lambda: loop.spawn(others()))
    assert done.wait(WITHIN)


def test_outcomes_are_numbered_on_and_answered_in_their_order(loop: Loop) -> None:
    member = borrower(Leaders(), loop)
    settles = [pb.SettleOne(lease=LEASE, ranges=[at, 1]) for at in range(2)]
    for first in (1, 3):
        answers = [
            pb.NumberedAnswer(number=first + 1, answer=pb.SettleAnswer(lost=[1, 1])),
            pb.NumberedAnswer(number=first + 9),
            pb.NumberedAnswer(number=first),
        ]
        loop.says = lambda said, told=answers: [  # type: ignore[misc]
            pb.SessionResponse(answers=[each]) for each in told if said.settles
        ]
        assert member.settle(settles, Deadline(WITHIN)) == [pb.SettleAnswer(), pb.SettleAnswer(lost=[1, 1])]
    assert member.settle([], Deadline(WITHIN)) == []


def test_what_is_refused_for_now_is_said_again_and_what_is_refused_for_good_is_raised(loop: Loop) -> None:
    member = borrower(Leaders(), loop)
    refusals = [Overloaded("busy"), LeaseLost("never")]

    def say(said: pb.SessionRequest) -> list[pb.SessionResponse]:
        if not said.settles:
            return []
        answer = pb.SettleAnswer(error=to_wire(refusals.pop(0)))
        return [pb.SessionResponse(answers=[pb.NumberedAnswer(number=1, answer=answer)])]

    loop.says = say
    with pytest.raises(LeaseLost, match="never"):
        member.settle([pb.SettleOne(lease=LEASE, ranges=[0, 1])], Deadline(WITHIN))
    assert refusals == []


def test_who_is_not_answered_does_not_know_what_came_of_it_and_begins_a_session_anew(loop: Loop) -> None:
    member = borrower(Leaders(), loop)
    with pytest.raises(OutcomeUnknown):
        member.lend(5, [], Deadline(50.0))
    loop.says = lends(0, 3)
    assert list(member.lend(5, [], Deadline(WITHIN)).ranges) == [0, 3]
    assert [said.session for _, said in loop.said if said.close] == [1]


def test_a_broker_that_lends_more_than_was_asked_for_is_found_out(loop: Loop) -> None:
    member = borrower(Leaders(), loop)
    loop.says = lends(0, 6)
    with pytest.raises(InternalError):
        member.lend(5, [], Deadline(WITHIN))


def test_a_member_that_was_closed_says_so_to_its_leader_and_asks_nothing_more(loop: Loop) -> None:
    member = borrower(Leaders(), loop)
    loop.says = lends(0, 3)
    member.lend(5, [], Deadline(WITHIN))
    member.close()
    settle_down(loop)
    assert [said.session for _, said in loop.said if said.close] == [1]
    with pytest.raises(InvalidRequest, match="was closed"):
        member.lend(5, [], Deadline(WITHIN))
