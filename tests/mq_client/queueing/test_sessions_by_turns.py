"""A member's sessions, turn by turn: the test is the leaders, and sets the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mq_client.errors import NotLeader, Unreachable
from mq_client.queueing import sessions as sessions_module
from mq_client.queueing.sessions import Sessions
from mq_client.queueing.settling import ACK
from mq_client.queueing.work_streams import Told
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import to_wire
from tests.mq_client.queueing.played_keeper import Played, places
from tests.mq_client.queueing.played_leaders import lent


class Stream:
    """In the place of `WorkStream`: what sessions say to one broker, and what they are told."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.said: list[pb.SessionRequest] = []
        self.listeners: dict[int, Callable[[Any], None]] = {}
        self._opened = 0

    def open(self, listener: Callable[[Any], None]) -> int:
        self._opened += 1
        self.listeners[self._opened] = listener
        return self._opened

    def say(self, request: pb.SessionRequest) -> None:
        self.said.append(request)

    def forget(self, number: int) -> None:
        self.listeners.pop(number, None)


class Spoken:
    """Owns a keeper whose turns the test takes and that speaks by sessions, and its streams, by address."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *leaders: int, **fields: Any) -> None:
        self.played = Played(monkeypatch, *leaders, **fields)
        self.streams: dict[str, Stream] = {}
        keeper, streams = self.played.keeper, self

        class _Streams:
            def to(self, address: str, *_: object) -> Stream:
                return streams.streams.setdefault(address, Stream(address))

        made: Any = _Streams()
        keeper._sessions = Sessions(
            keeper.connection, keeper.holdings, keeper._answers, lambda: made, keeper._hear_later, 0
        )

    def said(self, address: str = "b:1") -> list[pb.SessionRequest]:
        """What is new there, after all turns that are due."""
        self.played.rest()
        stream = self.streams[address]
        said, stream.said = stream.said, []
        return said

    def tell(self, session: int = 1, address: str = "b:1", **fields: Any) -> None:
        """Heard by whoever listens when it comes."""
        told = Told(pb.SessionResponse(session=session, **fields), ())
        self.streams[address].listeners[session](told)

    def lend(self, first: int, count: int, entry: int, session: int = 1) -> Any:
        self.tell(session, lease=lent(entry, first, count), lent_bytes=10 * count)
        with self.played.keeper.lock:
            while self.played.keeper._heard:
                self.played.keeper._heard.popleft()(self.played.clock.now)
        return self.played.read()

    def ack(self, lease: Any, *indexes: int) -> Any:
        return self.played.keeper.settle(lease, places(*indexes), ACK)

    def lapse(self) -> None:
        """So long that outcomes are said, and a session that broke is opened anew."""
        self.played.rest()
        self.played.pass_s(1.0)


def settled(requests: list[pb.SessionRequest]) -> list[list[int]]:
    return [list(one.ranges) for request in requests for one in request.settles if one.outcome == pb.OUTCOME_ACK]


def test_what_had_no_answer_when_a_session_broke_is_said_again_once_and_what_is_held_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoken = Spoken(monkeypatch)
    spoken.said()
    lease = spoken.lend(0, 5, entry=5)
    future = spoken.ack(lease, 0, 1)
    spoken.lapse()
    assert settled(spoken.said()) == [[0, 2]]
    former = spoken.streams["b:1"].listeners[1]
    former(Unreachable("the stream has ended"))
    spoken.lapse()
    opened, *others = spoken.said()
    assert [held.lease.entry for held in opened.open.held] == [5]
    assert settled([opened, *others]) == [[0, 2]]
    former(Told(pb.SessionResponse(session=1, lease=lent(6, 5, 5), lent_bytes=50), ()))
    spoken.played.rest()
    assert spoken.played.keeper.holdings.held == 5, "what comes by the former one goes back"
    spoken.tell(2, answers=[pb.NumberedAnswer(number=1, answer=pb.SettleAnswer())])
    spoken.played.rest()
    assert future.result(0) is None


def test_a_session_goes_to_whoever_leads_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = Spoken(monkeypatch)
    spoken.said()
    lease = spoken.lend(0, 5, entry=5)
    spoken.ack(lease, 0)
    spoken.lapse()
    spoken.said()
    spoken.played.leaders.lead(2, epoch=2)
    spoken.tell(error=to_wire(NotLeader("not here")))
    spoken.lapse()
    opened, *others = spoken.said("b:2")
    assert [held.lease.entry for held in opened.open.held] == [5]
    assert settled([opened, *others]) == [[0, 1]]
    assert not spoken.streams["b:1"].listeners


def test_claims_name_no_more_ranges_together_than_a_leader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a lease in more pieces all is claimed: what is not held of it runs out."""
    monkeypatch.setattr(sessions_module, "RANGES_MAX", 5)
    spoken = Spoken(monkeypatch, in_flight_max=30)
    spoken.said()
    leases = [spoken.lend(first, 5, entry=entry) for first, entry in ((0, 5), (5, 6), (10, 7))]
    for lease in leases[:2]:
        spoken.ack(lease, 1, 3)
    spoken.ack(leases[2], 0)
    spoken.lapse()
    count = sum(len(request.settles) for request in spoken.said())
    spoken.tell(answers=[pb.NumberedAnswer(number=number, answer=pb.SettleAnswer()) for number in range(1, count + 1)])
    spoken.played.rest()
    spoken.tell(error=to_wire(NotLeader("not here")))
    spoken.lapse()
    [opened] = [request.open for request in spoken.said() if request.HasField("open")]
    assert [(held.lease.entry, list(held.ranges)) for held in opened.held] == [
        (5, [0, 1, 1, 1, 1, 1]),
        (6, []),
        (7, [11, 4]),
    ]


def test_a_leader_of_a_later_epoch_is_told_which_leases_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know how long they are, nor that they are this member's by now."""
    spoken = Spoken(monkeypatch)
    spoken.said()
    spoken.lend(0, 5, entry=5)
    assert not any(request.check for request in spoken.said())
    spoken.played.leaders.lead(1, epoch=2)
    assert [lease.entry for request in spoken.said() for lease in request.check] == [5]
    spoken.lapse()
    assert not any(request.check for request in spoken.said()), "once"


def test_outcomes_wait_for_the_answer_to_those_before_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = Spoken(monkeypatch, in_flight_max=30)
    spoken.said()
    lease = spoken.lend(0, 10, entry=5)
    spoken.ack(lease, 0, 1, 2)
    spoken.lapse()
    assert settled(spoken.said()) == [[0, 3]]
    spoken.ack(lease, 3)
    spoken.lapse()
    assert settled(spoken.said()) == []
    spoken.tell(answers=[pb.NumberedAnswer(number=1, answer=pb.SettleAnswer())])
    spoken.lapse()
    assert settled(spoken.said()) == [[3, 1]]
