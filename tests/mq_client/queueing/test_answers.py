"""What the leaders' answers mean for what a member holds and for whom it asks next."""

from __future__ import annotations

import pytest

from mq_client.errors import (
    DiskFull,
    InternalError,
    InvalidRequest,
    LeaseLost,
    MemberInUse,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    TritonMQError,
    UnknownPartition,
    UnknownQueue,
    Unreachable,
)
from mq_client.queueing.sessions import DECLARED_S
from mq_client.queueing.settling import ACK, RELEASE
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.error_messages import to_wire
from tests.mq_client.queueing.played_keeper import Played, lent, places
from tests.mq_client.queueing.test_answered_rows import answer

# ---------------------------------------------------------------- leases


@pytest.mark.parametrize(
    "lease",
    [
        pb.LeaseResponse(lease=pb.LeaseId(leader_epoch=1, entry=1), ranges=[0, 11], deliveries=[1], failures=[0]),
        pb.LeaseResponse(lease=pb.LeaseId(leader_epoch=1, entry=1), ranges=[0, 1], deliveries=[], failures=[0]),
        pb.LeaseResponse(lease=pb.LeaseId(leader_epoch=1, entry=1), ranges=[0, 1], deliveries=[1], failures=[]),
        pb.LeaseResponse(lease=pb.LeaseId(leader_epoch=1, entry=1), ranges=[0], deliveries=[1], failures=[0]),
        pb.LeaseResponse(lease=pb.LeaseId(leader_epoch=1, entry=1)),
    ],
)
def test_a_lease_that_cannot_be_ends_the_queue_and_is_not_taken(lease: pb.LeaseResponse) -> None:
    played = Played()
    played.lend_unread(lease)
    assert isinstance(played.keeper.error, InternalError)
    assert played.keeper.holdings.held == 0


def test_rows_that_come_with_a_lease_are_handed_out_and_weigh_what_they_took() -> None:
    played = Played()
    lease = lent(5, 0, 2)
    with_rows, payloads = answer((0, 2, None))
    lease.MergeFrom(with_rows)
    size = sum(map(len, payloads))
    played.tell(lease=lease, lent_bytes=2 * size, payloads=payloads)
    played.rest()
    assert not played.keeper.holdings.unread
    assert [played.take()[1] for _ in range(2)] == [0, 1]
    assert played.keeper.holdings.held_bytes == size


@pytest.mark.parametrize(
    ("error", "asked_again", "doubted"),
    [
        (Overloaded("busy"), True, False),
        (DiskFull("full"), True, False),
        (NotEnoughReplicas("1 of 2"), True, False),
        (UnknownPartition("not yet"), True, True),
        (Unreachable("gone"), True, True),
        (OutcomeUnknown("no answer"), True, True),
        (InvalidRequest("never"), False, False),
        (MemberInUse("another process works as member 'm'"), False, False),
    ],
)
def test_what_passes_is_asked_again_after_a_pause_and_what_does_not_ends_the_queue(
    error: TritonMQError, asked_again: bool, doubted: bool
) -> None:
    played = Played()
    played.said()
    played.break_off(error)
    assert (played.keeper.error is None) == asked_again
    assert ("b:1" in played.refreshes.asked) == doubted
    assert played.said() == []
    assert played.place.ask_after > played.clock.now
    played.clock.now = played.place.ask_after
    assert any(request.HasField("open") for request in played.said()) == asked_again


def test_a_leader_that_is_named_is_asked_next() -> None:
    played = Played()
    played.refuse(NotLeader("another", leader=2, leader_epoch=2))
    played.clock.now = played.place.ask_after
    assert any(request.HasField("open") for request in played.said("b:2"))


def test_a_group_that_is_not_known_is_one_that_was_declared_lately_or_one_that_is_gone() -> None:
    played = Played()
    for passed_s, known in ((0.0, True), (DECLARED_S - 0.1, True), (5.0, False)):
        played.clock.now += passed_s
        played.refuse(UnknownQueue("no such queue"))
        assert (played.keeper.error is None) == known
    assert isinstance(played.keeper.error, UnknownQueue)


# ---------------------------------------------------------------- outcomes


def test_each_line_of_outcomes_has_its_own_answer() -> None:
    played = Played()
    lease = played.lend(4)
    futures = [played.keeper.settle(lease, places(index), word) for index, word in ((0, ACK), (1, RELEASE))]
    busy, never = (pb.SettleAnswer(error=to_wire(error)) for error in (Overloaded("busy"), InvalidRequest("never")))
    played.one().reply([busy, never])
    played.rest()
    assert not futures[0].done()
    assert isinstance(futures[1].exception(0), InvalidRequest)
    played.clock.now = played.place.settle_after
    [again] = played.sayings()
    assert again.lines == [(pb.OUTCOME_ACK, [0, 1])]
    again.done()
    played.rest()
    assert futures[0].result(0) is None
    with pytest.raises(LeaseLost):
        played.keeper.settle(lease, places(1), ACK)


def test_what_is_lost_is_told_whether_it_was_said_before_or_not() -> None:
    for word in (RELEASE, ACK):
        played = Played()
        lease = played.lend(2)
        future = played.keeper.settle(lease, places(0), word)
        played.one()
        played.break_off(OutcomeUnknown("no answer"))
        played.clock.now = played.place.ask_after
        played.one().done(0, 1)
        played.rest()
        assert isinstance(future.exception(0), LeaseLost)
    played = Played()
    lease = played.lend(2)
    future = played.keeper.settle(lease, places(0), RELEASE)
    played.one().done(0, 1)
    played.rest()
    assert isinstance(future.exception(0), LeaseLost), "said for the first time, it was not this member's"


# ---------------------------------------------------------------- extensions


def test_what_could_not_be_extended_is_lost_unless_it_has_an_outcome() -> None:
    played = Played()
    lease = played.lend(4)
    extension = played.keeper.extend(lease, places(0, 1, 2))
    [asked] = played.sayings()
    played.keeper.settle_one(lease, 1, ACK)
    asked.done(0, 2)
    played.rest()
    with pytest.raises(LeaseLost, match=r"1 of these records .*\(offset 0\)"):
        extension.result(0)
    assert [lease.state(index) for index in range(4)] == [5, 3, 0, 0]


def test_an_extension_that_can_never_be_is_told_and_nothing_is_lost() -> None:
    played = Played()
    lease = played.lend(4)
    extension = played.keeper.extend(lease, places(0))
    played.one().refuse(InvalidRequest("never"))
    played.rest()
    assert isinstance(extension.exception(0), InvalidRequest)
    assert lease.open == 4
    extension = played.keeper.extend(lease, places(0))
    played.one().refuse(Overloaded("busy"))
    played.rest()
    assert not extension.done()
    played.clock.now = played.place.extend_after
    played.one().done()
    played.rest()
    assert extension.result(0) is None
