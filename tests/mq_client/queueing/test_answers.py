"""What the leaders' answers mean for what a member holds and for whom it asks next."""

from __future__ import annotations

import pytest

from mq_client.errors import (
    DiskFull,
    InternalError,
    InvalidRequest,
    LeaseLost,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    TritonMQError,
    UnknownPartition,
    UnknownQueue,
    Unreachable,
)
from mq_client.queueing.answers import DECLARED_S
from mq_client.queueing.planning import GATHER_S
from mq_client.queueing.settling import ACK, RELEASE
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import to_wire
from mq_protocol.manifest import StagedPart
from tests.mq_client.queueing.played_keeper import Played, places
from tests.mq_client.queueing.played_leaders import Asked, done, lent, said

PART = (StagedPart("out", 0, (b"u" * 16,), 1, "id"),)


def settled(played: Played) -> Asked:
    """The outcomes that are due now are asked for."""
    played.clock.now += GATHER_S
    [asked] = [each for each in played.asked() if each.method == "Settle"]
    return asked


# ---------------------------------------------------------------- leases


def test_a_leader_that_had_nothing_for_this_member_is_asked_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, 1, 2)
    [first] = played.asked()
    first.answer(pb.LeaseResponse(ready=True))
    played.rest()
    assert played.place.ask_after > played.clock.now
    assert played.place.hopeful
    [other] = played.asked()
    assert other.request.partition == 1
    other.answer(lent(1, 0, 1))
    played.rest()
    assert not played.keeper.holdings.places[1].hopeful
    assert played.keeper.holdings.places[1].ask_after == 0.0


def test_a_leader_that_has_something_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, 1, 2)
    for _ in range(2):
        [asked] = played.asked()
        asked.answer(pb.LeaseResponse())
    watches = played.asked()
    assert [asked.request.records_max for asked in watches] == [0, 0]
    watches[0].answer(pb.LeaseResponse(ready=True))
    [asked] = played.asked()
    assert (asked.request.partition, asked.request.records_max) == (0, 10)


@pytest.mark.parametrize(
    "answer",
    [
        pb.LeaseResponse(lease=pb.LeaseId(leader_epoch=1, entry=1), ranges=[0, 11], deliveries=[1], failures=[0]),
        pb.LeaseResponse(lease=pb.LeaseId(leader_epoch=1, entry=1), ranges=[0, 1], deliveries=[], failures=[0]),
        pb.LeaseResponse(lease=pb.LeaseId(leader_epoch=1, entry=1), ranges=[0, 1], deliveries=[1], failures=[]),
        pb.LeaseResponse(lease=pb.LeaseId(leader_epoch=1, entry=1), ranges=[0], deliveries=[1], failures=[0]),
        pb.LeaseResponse(lease=pb.LeaseId(leader_epoch=1, entry=1)),
    ],
)
def test_an_answer_that_cannot_be_ends_the_queue_and_takes_no_lease(
    monkeypatch: pytest.MonkeyPatch, answer: pb.LeaseResponse
) -> None:
    played = Played(monkeypatch)
    played.one("Lease").answer(answer)
    played.rest()
    assert isinstance(played.keeper.error, InternalError)
    assert played.keeper.holdings.held == 0


def test_until_its_rows_are_read_a_lease_counts_as_much_as_was_allowed_or_as_records_took_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, in_flight_max=10, bytes_max=1_000)
    played.one("Lease").answer(lent(1, 0, 4))
    played.rest()
    assert played.keeper.holdings.held_bytes == 1_000
    played.read()
    assert played.keeper.holdings.held_bytes == 40
    for _ in range(4):
        played.take()
    played.one("Lease").answer(lent(2, 10, 2))
    played.rest()
    assert played.keeper.holdings.held_bytes == 40 + 2 * 10
    answers = played.keeper._answers
    answers.note_size(20.0)
    assert answers.bytes_each == pytest.approx(12.0), "the last one counts for a fifth"


@pytest.mark.parametrize(
    ("error", "asked_again", "doubted", "unsure"),
    [
        (Overloaded("busy"), True, False, False),
        (DiskFull("full"), True, False, False),
        (NotEnoughReplicas("1 of 2"), True, False, False),
        (UnknownPartition("not yet"), True, True, False),
        (Unreachable("gone"), True, True, False),
        (OutcomeUnknown("no answer"), True, True, True),
        (InvalidRequest("never"), False, False, False),
    ],
)
def test_what_passes_is_asked_again_after_a_pause_and_what_does_not_ends_the_queue(
    monkeypatch: pytest.MonkeyPatch, error: TritonMQError, asked_again: bool, doubted: bool, unsure: bool
) -> None:
    played = Played(monkeypatch)
    played.one("Lease").answer(error)
    played.rest()
    assert (played.keeper.error is None) == asked_again
    assert ("b:1" in played.refreshes.asked) == doubted
    if error.definite:
        assert not played.place.unsure
    assert played.place.unsure or not unsure
    assert played.asked() == []
    played.clock.now = played.place.ask_after
    assert len(played.asked()) == asked_again


def test_a_leader_that_failed_may_have_something_still_and_is_asked_as_soon_as_its_pause_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, 1, 2)
    first = played.one("Lease")
    first.answer(pb.LeaseResponse())
    second = played.one("Lease")
    assert second.request.partition == 1
    second.answer(Overloaded("busy"))
    place = played.keeper.holdings.places[1]
    [watch] = played.asked()
    assert (watch.request.partition, watch.request.records_max) == (0, 0)
    assert played.rest() == pytest.approx(place.ask_after - played.clock.now, abs=1e-6)
    played.clock.now = place.ask_after
    again = played.one("Lease")
    assert (again.request.partition, again.request.records_max) == (1, 10)


def test_a_leader_that_is_named_is_asked_next(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    played.one("Lease").answer(NotLeader("another", leader=2, leader_epoch=2))
    played.rest()
    played.clock.now = played.place.ask_after
    assert played.one("Lease").address == "b:2"


def test_a_group_that_is_not_known_is_one_that_was_declared_lately_or_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch)
    played.one("Lease").answer(UnknownQueue("no such queue"))
    played.rest()
    assert played.keeper.error is None
    played.clock.now += DECLARED_S - 0.1
    played.one("Lease").answer(UnknownQueue("no such queue"))
    played.rest()
    assert played.keeper.error is None
    played.clock.now += 5.0
    played.one("Lease").answer(UnknownQueue("no such queue"))
    played.rest()
    assert isinstance(played.keeper.error, UnknownQueue)


# ---------------------------------------------------------------- outcomes


def test_each_line_of_outcomes_has_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(4)
    played.asked()
    futures = [played.keeper.settle(lease, places(index), word) for index, word in ((0, ACK), (1, RELEASE))]
    asked = settled(played)
    busy, never = (pb.SettleAnswer(error=to_wire(error)) for error in (Overloaded("busy"), InvalidRequest("never")))
    asked.answer(pb.SettleResponse(answers=[busy, never]))
    played.rest()
    assert not futures[0].done()
    assert isinstance(futures[1].exception(0), InvalidRequest)
    played.clock.now = played.place.settle_after
    [again] = played.asked()
    assert said(again) == [(pb.OUTCOME_ACK, [0, 1])]
    again.answer(done(again))
    played.rest()
    assert futures[0].result(0) is None
    with pytest.raises(LeaseLost):
        played.keeper.settle(lease, places(1), ACK)


def test_an_answer_that_lacks_a_line_refuses_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(4)
    played.asked()
    future = played.keeper.settle(lease, places(0), ACK)
    settled(played).answer(pb.SettleResponse())
    played.rest()
    assert "answered 0 of 1 outcomes" in str(future.exception(0))
    extension = played.keeper.extend(lease, places(1))
    played.one("Settle").answer(pb.SettleResponse())
    played.rest()
    assert isinstance(extension.exception(0), InternalError)
    assert lease.state(1) != 5, "it may still be settled"


def test_what_is_lost_is_told_whether_it_was_said_before_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in (RELEASE, ACK):
        played = Played(monkeypatch)
        lease = played.lend(2)
        played.asked()
        future = played.keeper.settle(lease, places(0), word)
        settled(played).answer(OutcomeUnknown("no answer"))
        played.rest()
        played.clock.now = max(played.place.settle_after, played.place.ask_after)
        [again] = [asked for asked in played.asked() if asked.method == "Settle"]
        again.answer(done(again, 0, 1))
        played.rest()
        assert isinstance(future.exception(0), LeaseLost)
    played = Played(monkeypatch)
    lease = played.lend(2)
    played.asked()
    future = played.keeper.settle(lease, places(0), RELEASE)
    asked = settled(played)
    asked.answer(done(asked, 0, 1))
    played.rest()
    assert isinstance(future.exception(0), LeaseLost)


def test_after_an_answer_the_next_failure_pauses_as_briefly_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(4)
    played.asked()
    played.keeper.settle(lease, places(0), ACK)
    asked = settled(played)
    for _ in range(6):
        asked.answer(Overloaded("busy"))
        played.rest()
        played.clock.now = played.place.settle_after
        [asked] = played.asked()
    long_s = played.place.settle_backoff.next_ms()
    asked.answer(done(asked))
    played.rest()
    assert played.place.settle_backoff.next_ms() < long_s


# ---------------------------------------------------------------- extensions


def test_what_could_not_be_extended_is_lost_unless_it_has_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(4)
    played.asked()
    extension = played.keeper.extend(lease, places(0, 1, 2))
    asked = played.one("Settle")
    played.keeper.settle_one(lease, 1, ACK)
    asked.answer(done(asked, 0, 2))
    played.rest()
    with pytest.raises(LeaseLost, match=r"1 of these records .*\(offset 0\)"):
        extension.result(0)
    assert [lease.state(index) for index in range(4)] == [5, 3, 0, 0]


def test_an_extension_that_can_never_be_is_told_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(4)
    played.asked()
    extension = played.keeper.extend(lease, places(0))
    played.one("Settle").answer(InvalidRequest("never"))
    played.rest()
    assert isinstance(extension.exception(0), InvalidRequest)
    assert lease.open == 4
    extension = played.keeper.extend(lease, places(0))
    asked = played.one("Settle")
    asked.answer(pb.SettleResponse(answers=[pb.SettleAnswer(error=to_wire(Overloaded("busy")))]))
    played.rest()
    assert not extension.done()
    played.clock.now = played.place.extend_after
    again = played.one("Settle")
    again.answer(done(again))
    played.rest()
    assert extension.result(0) is None


def test_lost_records_that_nobody_named_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for gaps in ((2, 1), (7, 0), (1 << 62, 5), (3,)):
        played = Played(monkeypatch)
        lease = played.lend(4)
        played.asked()
        future = played.keeper.settle(lease, places(0), ACK)
        asked = settled(played)
        asked.answer(done(asked, *gaps))
        played.rest()
        assert future.result(0) is None
        assert lease.open == 3
