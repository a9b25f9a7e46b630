"""A member of a queue whose records are worked on one after another; the leaders are played by the test."""

from __future__ import annotations

from concurrent.futures import Future

from mq_client.errors import LeaseLost, Unreachable
from mq_client.queueing.settling import ACK, failed
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart
from tests.mq_client.queueing.played_keeper import Played, lent, places

A, F, R, E = pb.OUTCOME_ACK, pb.OUTCOME_FAIL, pb.OUTCOME_RELEASE, pb.OUTCOME_EXTEND


class Ordered(Played):
    """A member that was lent so many records in order, which are worked on one after another."""

    def __init__(self, count: int) -> None:
        super().__init__(in_flight_max=4)
        self.lease = self.lend(count, order=pb.ORDER_ALL)

    @property
    def free(self) -> bool:
        """Whether something may be handed out."""
        with self.keeper.lock:
            return bool(self.keeper.holdings.shelf)

    def take_offset(self) -> int:
        lease, index = self.take()
        return int(lease.offsets[index])

    def ack(self, index: int) -> Future[None]:
        return self.keeper.settle_one(self.lease, index, ACK)


def test_the_next_record_is_handed_out_once_the_one_before_is_acknowledged() -> None:
    of = Ordered(3)
    of.take()
    assert not of.free
    of.ack(0)
    assert of.take_offset() == 1, "before the answer"


def test_records_are_in_the_order_of_the_column_that_their_leader_names() -> None:
    played = Played()
    played.lend_unread(lent(5, 0, 3, order=pb.ORDER_KEY, order_by="n"))
    played.read([7, 7, 8])
    assert [played.take()[1] for _ in range(2)] == [0, 2]
    with played.keeper.lock:
        assert not played.keeper.holdings.shelf, "the other record of 7 waits"


def test_when_a_record_goes_back_nothing_of_its_key_is_begun_before_the_answer_and_what_went_with_it_is_let_go() -> (
    None
):
    of = Ordered(4)
    of.take()
    future = of.keeper.settle_one(of.lease, 0, failed("boom"))
    said = of.one()
    assert said.lines == [(F, [0, 1])]
    assert not of.free
    answer = pb.SettleAnswer()
    answer.pulled.add(lease=pb.LeaseId(leader_epoch=1, entry=5), ranges=[1, 2])
    said.reply([answer])
    of.rest()
    assert future.result(0) is None
    extension = of.one()
    assert extension.lines == [(E, [3, 1])]
    extension.done()
    of.rest()
    assert of.take_offset() == 3, "what it was not told to let go it has still"


def test_after_a_lost_record_the_leader_is_asked_which_of_the_others_are_left() -> None:
    of = Ordered(4)
    of.take()
    future = of.ack(0)
    of.take()
    asked = of.one()
    assert asked.lines == [(A, [0, 1])]
    assert not of.free
    second = of.ack(1)
    of.take()
    asked.done(0, 1)
    of.rest()
    assert isinstance(future.exception(0), LeaseLost)
    [extension] = of.sayings()
    assert extension.lines == [(E, [3, 1])]
    of.ack(2)
    assert not of.free, "it is not known yet whether the last one is this member's"
    extension.done(3, 1)
    acks = of.one()
    assert acks.lines == [(A, [1, 2])]
    acks.done()
    of.rest()
    assert second.result(0) is None
    assert not of.free


def test_records_lent_before_a_loss_was_told_are_asked_about_before_they_are_worked_on() -> None:
    of = Ordered(2)
    of.take()
    future = of.keeper.ack_with_outputs(of.lease, places(0), (StagedPart("out", 0, (b"u" * 16,), 1, "o"),))
    asked = of.one()
    of.lend_unread(lent(6, 2, 1, order=pb.ORDER_ALL))
    asked.done(0, 1)
    of.rest()
    assert isinstance(future.exception(0), LeaseLost)
    back = of.one()
    assert back.lines == [(R, [0, 1])]
    back.done(0, 1)
    of.read()
    more = of.one()
    assert more.lines == [(E, [1, 1]), (E, [2, 1])]
    assert not of.free
    more.done()
    of.rest()
    assert of.take_offset() == 1


def test_after_a_return_whose_first_answer_was_lost_the_leader_is_asked_too() -> None:
    of = Ordered(4)
    of.take()
    future = of.keeper.settle_one(of.lease, 0, failed("boom"))
    assert of.one().lines == [(F, [0, 1])]
    of.break_off(Unreachable("gone"))
    of.clock.now = of.place.ask_after
    again = of.one()
    assert again.lines == [(F, [0, 1])]
    again.done()
    of.rest()
    assert future.result(0) is None
    asked = of.one()
    assert asked.lines == [(E, [1, 3])]
    assert not of.free
    asked.done(1, 2)
    more = of.one()
    assert more.lines == [(E, [3, 1])], "others were lost since the question was sent"
    assert not of.free
    more.done()
    of.rest()
    assert of.take_offset() == 3
