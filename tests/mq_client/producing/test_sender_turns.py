"""One turn of the sender at a time: what goes where, what is given up, when it looks again. The test is clock and
brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.errors import (
    DiskFull,
    InternalError,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    NotSent,
    OutcomeUnknown,
    OutOfOrder,
    Overloaded,
    StorageFailed,
    TritonMQError,
    UnknownTopic,
    Unreachable,
)
from mq_client.producing import sender as sender_module
from mq_client.producing.accumulator import Answer
from mq_client.producing.futures import BatchOutcome, BatchPlace, RecordFuture
from mq_protocol import mq_pb2 as pb
from tests.mq_client.producing.sender_turns import DELIVERY_S, STALL_S, T0, Turns


@pytest.fixture
def turns() -> Turns:
    return Turns()


def result(outcome: BatchOutcome, index: int = 0) -> Any:
    return RecordFuture(outcome, index).result(0)


def error(outcome: BatchOutcome) -> BaseException | None:
    return RecordFuture(outcome, 0).exception(0)


def placed(correlation: int, base_offset: int) -> pb.ProduceResult:
    return pb.ProduceResult(correlation=correlation, base_offset=base_offset, timestamp_us=7)


# ---------------------------------------------------------------- what goes out


def test_a_request_says_what_the_broker_must_know(turns: Turns) -> None:
    view = turns.connection.known_topic("t")
    assert view is not None
    turns.publish(uuid=b"a" * 16)
    turns.publish(uuid=b"b" * 16)
    (first, second), _, _ = turns.turn(T0 + 10)
    assert (first.correlation, second.correlation) == (1, 2)
    assert (first.uuid, first.after, second.uuid, second.after) == (b"a" * 16, b"", b"b" * 16, b"a" * 16)
    assert first.schema_fingerprint == view.fingerprint
    assert first.acks == pb.ALL
    assert not first.HasField("stage")
    turns.accumulator.traceparent = lambda: b"span"
    turns.publish()
    assert [header.traceparent for header in turns.turn()[0]] == [b"span"]


def test_without_a_leader_nothing_is_sent_and_it_is_asked_who_leads(turns: Turns) -> None:
    turns.lead(0, 1, epoch=2)
    turns.publish()
    sent, answers, wake = turns.turn()
    assert (sent, answers) == ([], [])
    assert turns.asked.asked == [("t", "")]
    assert turns.sender._streams == {}
    assert wake > T0


def test_a_lane_that_waits_after_a_failure_opens_no_stream(turns: Turns) -> None:
    turns.publish()
    turns.turn()
    turns.breaks("b:1")
    assert turns.sender._streams == {}
    [lane] = turns.accumulator.busy()
    sent, _, wake = turns.turn(lane.not_before - 0.001)
    assert sent == []
    assert turns.sender._streams == {}
    assert wake == lane.not_before
    sent, _, _ = turns.turn(lane.not_before)
    assert [header.correlation for header in sent] == [2]


# ---------------------------------------------------------------- when it looks again


# ---------------------------------------------------------------- what ends


def test_a_batch_past_its_deadline_ends_with_what_is_known_of_it(turns: Turns) -> None:
    turns.lead(0, 1, epoch=2)
    never, sent = turns.publish(partition=0), turns.publish(partition=1)
    turns.turn(T0)
    assert turns.turn(T0 + DELIVERY_S - 0.001)[1] == []
    assert len(turns.turn(T0 + DELIVERY_S)[1]) == 2
    assert isinstance(error(never), NotSent)
    assert isinstance(error(sent), OutcomeUnknown)
    assert turns.accumulator.idle


def test_a_topic_that_is_gone_ends_what_waits_for_it(turns: Turns) -> None:
    gone = turns.publish()
    turns.asked.refused["t"] = UnknownTopic("gone")
    _, answers, _ = turns.turn()
    assert isinstance(error(gone), UnknownTopic)
    assert turns.changed == ["t"]
    assert len(answers) == 1
    assert turns.accumulator.idle


def test_a_sender_that_stops_gives_up_what_has_no_answer(turns: Turns) -> None:
    waiting, sent = turns.publish(partition=0), turns.publish(partition=1)
    turns.lead(0, 1, epoch=2)
    turns.turn()
    stream = turns.stream("b:1")
    target = turns.accumulator.add_target(turns.lead(0, 1, epoch=2))
    still_open, _ = turns.accumulator.add(target, 0, None, b"x", None, None, 1, 0, T0)
    turns.sender.stop(Deadline(1_000))
    assert isinstance(still_open.exception(0), NotSent)
    assert isinstance(error(waiting), NotSent)
    assert isinstance(error(sent), OutcomeUnknown)
    assert stream.closed


def test_a_flush_that_is_too_short_says_how_many_batches_have_no_answer(turns: Turns) -> None:
    turns.publish()
    turns.publish()
    with pytest.raises(OutcomeUnknown, match=r"2 batches have no answer after 0 ms.*flush again"):
        turns.sender.flush(Deadline(0))
    turns.turn()
    turns.results("b:1", placed(1, 0), placed(2, 1))
    turns.sender.flush(Deadline(0))


def test_a_flush_does_not_wait_for_the_linger() -> None:
    turns = Turns(linger_s=10.0)
    view = turns.connection.known_topic("t")
    assert view is not None
    target = turns.accumulator.add_target(view)
    turns.accumulator.add(target, 0, None, b"x", None, None, 1, 0, T0)
    assert turns.turn()[0] == []
    with pytest.raises(OutcomeUnknown, match="1 batches"):
        turns.sender.flush(Deadline(0))
    assert len(turns.turn()[0]) == 1


# ---------------------------------------------------------------- memory


def test_room_is_there_up_to_the_bound_and_for_anything_when_nothing_waits(turns: Turns) -> None:
    with turns.sender.lock:
        turns.sender.wait_for_room(1_000, 10, Deadline(0))  # larger than all that is allowed, and alone
        turns.accumulator.pending_bytes = 6
        turns.sender.wait_for_room(4, 10, Deadline(0))
        with pytest.raises(Overloaded, match=r"holds 6 unacknowledged bytes.*buffer_bytes_max=10"):
            turns.sender.wait_for_room(5, 10, Deadline(0))


# ---------------------------------------------------------------- who leads


def test_what_is_in_flight_at_a_former_leader_goes_to_the_next_at_once(turns: Turns) -> None:
    moved = turns.publish()
    turns.turn()
    turns.lead(2, 1, epoch=2)
    sent, answers, _ = turns.turn(T0 + 1)
    assert answers == []
    assert [header.correlation for header in sent] == [2]
    assert list(turns.stream("b:2").correlations) == [2]
    turns.results("b:1", placed(1, 5))  # too late: it is the next leader's answer that counts
    turns.results("b:2", placed(2, 6))
    assert result(moved).offset == 6


def test_a_leader_that_is_silent_for_long_is_doubted(turns: Turns) -> None:
    turns.publish()
    turns.turn(T0)
    turns.publish()
    turns.turn(T0 + 1)
    turns.turn(T0 + STALL_S)
    assert turns.asked.asked == []
    turns.turn(T0 + STALL_S + 0.001)  # the oldest counts
    assert turns.asked.asked == [("t", "b:1")]


@pytest.mark.parametrize("retriable", [OutOfOrder("x"), Overloaded("x"), NotEnoughReplicas("x"), DiskFull("x")])
def test_an_error_that_says_nothing_of_another_leader_asks_for_none(turns: Turns, retriable: TritonMQError) -> None:
    turns.publish()
    turns.turn()
    turns.refuse("b:1", 1, retriable)
    assert turns.asked.asked == []


@pytest.mark.parametrize("retriable", [Unreachable("x"), NotLeader("x"), StorageFailed("x")])
def test_an_error_that_may_mean_another_leader_asks_who_it_is(turns: Turns, retriable: TritonMQError) -> None:
    turns.publish()
    turns.turn()
    turns.refuse("b:1", 1, retriable)
    assert turns.asked.asked == [("t", "b:1")]


def test_a_broker_that_names_the_leader_is_believed(turns: Turns) -> None:
    turns.publish()
    turns.turn()
    turns.refuse("b:1", 1, NotLeader("2 does", 2, 2))
    view = turns.connection.known_topic("t")
    assert view is not None
    assert turns.connection.leader_address(view, 0) == "b:2"
    sent, _, _ = turns.turn()  # and without a pause
    assert [header.correlation for header in sent] == [2]
    assert list(turns.stream("b:2").correlations) == [2]


def test_a_broker_that_knows_no_such_topic_makes_it_forget_what_it_knew(turns: Turns) -> None:
    refused = turns.publish()
    turns.turn()
    turns.refuse("b:1", 1, UnknownTopic("deleted"))
    assert turns.connection.known_topic("t") is None
    assert turns.changed == ["t"]
    assert isinstance(error(refused), UnknownTopic)


def test_an_error_about_one_batch_leaves_what_is_known_of_the_topic(turns: Turns) -> None:
    refused = turns.publish()
    turns.turn()
    turns.refuse("b:1", 1, InvalidRequest("no"))
    assert turns.connection.known_topic("t") is not None
    assert (turns.changed, turns.asked.asked) == ([], [])
    assert isinstance(error(refused), InvalidRequest)


def test_a_broken_stream_is_opened_anew_and_its_batches_go_again(turns: Turns) -> None:
    turns.publish()
    turns.publish()
    turns.turn()
    broken = turns.stream("b:1")
    turns.breaks("b:1")
    assert turns.asked.asked == [("t", "b:1")] * 2
    [lane] = turns.accumulator.busy()
    sent, _, _ = turns.turn(lane.not_before)
    assert [header.correlation for header in sent] == [3, 4]
    assert turns.stream("b:1") is not broken
    still: Any = broken
    turns.sender._on_broken(still, Unreachable("gone"), True)  # its late word ends nothing of the new one
    assert turns.stream("b:1") is not broken


@pytest.mark.parametrize(("reached", "ends_as"), [(True, OutcomeUnknown), (False, NotSent)])
def test_a_stream_that_never_reached_the_broker_leaves_no_doubt(
    turns: Turns, reached: bool, ends_as: type[TritonMQError]
) -> None:
    outcome = turns.publish()
    turns.turn()
    turns.breaks("b:1", reached=reached)
    turns.lead(0, 0, epoch=2)
    turns.turn(T0 + DELIVERY_S)
    assert type(error(outcome)) is ends_as


# ---------------------------------------------------------------- answers about records


def there(correlation: int, *positions: int) -> pb.ProduceResult:
    known = pb.RecordsThere(
        positions=positions, offsets=[100 + at for at in positions], timestamps_us=[9] * len(positions)
    )
    return pb.ProduceResult(correlation=correlation, there=known)


def publish_own(turns: Turns, count: int) -> BatchOutcome:
    outcome = turns.publish(rows=count)
    turns.accumulator.busy()[0].batches[-1].record_uuids = b"".join(bytes([at + 1]) * 16 for at in range(count))
    return outcome


def test_records_that_are_there_already_have_their_places_and_the_rest_is_sent_again(turns: Turns) -> None:
    outcome = publish_own(turns, 3)
    turns.turn()
    turns.results("b:1", there(1, 0, 2))
    sent, _, _ = turns.turn()
    assert [(header.correlation, header.record_count, header.record_uuids) for header in sent] == [
        (2, 1, bytes([2]) * 16)
    ]
    turns.results("b:1", placed(2, 50))
    assert [result(outcome, at)[1:] for at in range(3)] == [(0, 100, 9, True), (0, 50, 7, False), (0, 102, 9, True)]


@pytest.mark.parametrize("positions", [(), (3,), (0, 3)])
def test_a_broker_that_speaks_of_records_that_were_not_sent_is_not_believed(
    turns: Turns, positions: Sequence[int]
) -> None:
    outcome = publish_own(turns, 3)
    turns.turn()
    turns.results("b:1", there(1, *positions))
    assert isinstance(error(outcome), InternalError)


def test_a_broker_that_speaks_of_records_without_uuids_is_not_believed(turns: Turns) -> None:
    outcome = turns.publish(rows=3)
    turns.turn()
    turns.results("b:1", there(1, 0))
    assert isinstance(error(outcome), InternalError)


def test_answers_to_what_nobody_waits_for_do_nothing(turns: Turns) -> None:
    turns.publish()
    turns.turn()
    turns.results("b:1", placed(7, 0), there(8, 0))
    turns.refuse("b:1", 9, InvalidRequest("no"))
    assert list(turns.accumulator.in_flight) == [1]
    assert turns.stream("b:1").bytes > 0


# ---------------------------------------------------------------- topics that change


def test_a_topic_that_is_made_anew_has_its_target_dropped(turns: Turns) -> None:
    view = turns.connection.known_topic("t")
    assert view is not None
    turns.accumulator.add_target(view)
    turns.turn(T0)
    assert turns.changed == []
    turns.lead(1, 1, epoch=1, topic_id="2")
    turns.turn(T0 + sender_module._IDLE_S - 0.001)
    assert turns.changed == []
    turns.turn(T0 + sender_module._IDLE_S)
    assert turns.changed == ["t"]


def test_a_topic_that_is_gone_is_forgotten_with_its_refusal_unless_somebody_waits(turns: Turns) -> None:
    view = turns.connection.known_topic("t")
    assert view is not None
    turns.accumulator.add_target(view)
    turns.connection.forget("t")
    turns.asked.refused["t"] = UnknownTopic("gone")
    turns.turn(T0)
    assert turns.changed == ["t"]
    assert turns.asked.refused == {}
    other = Turns()
    known = other.connection.known_topic("t")
    assert known is not None
    other.accumulator.add_target(known)
    waiting = other.publish()
    other.connection.forget("t")
    other.asked.refused["t"] = UnknownTopic("gone")
    other.turn(T0)
    assert isinstance(error(waiting), UnknownTopic)


def test_a_topic_heard_of_long_ago_is_asked_for_once_in_its_time() -> None:
    class Aged(Connection):
        age_s = 30.0

        def topic_age_s(self, name: str) -> float:
            return self.age_s

    turns = Turns(metadata_age_s_max=30.0, connection=(connection := Aged("b:1")))
    view = turns.connection.known_topic("t")
    assert view is not None
    turns.accumulator.add_target(view)
    turns.turn(T0)
    assert turns.asked.asked == []
    connection.age_s = 30.5
    for step in range(1, 31):
        turns.turn(T0 + step)
    assert turns.asked.asked == [("t", "")]
    turns.turn(T0 + 32)
    assert turns.asked.asked == [("t", "")] * 2


# ---------------------------------------------------------------- errors that nobody has looked at


def failed(outcome: BatchOutcome | Any) -> Answer:
    return Answer(outcome, None, InvalidRequest("no"))


def test_errors_that_nobody_looks_at_are_kept_up_to_a_bound(turns: Turns) -> None:
    most = 10_000
    seen, fine = BatchOutcome("t"), BatchOutcome("t")
    seen.observed = True
    turns.sender._note([failed(seen), Answer(fine, BatchPlace(0, 0, 1, 0, False), None)])
    assert turns.sender.failures == []
    outcomes = [BatchOutcome("t") for _ in range(most + 1)]
    turns.sender._note([failed(outcome) for outcome in outcomes[:-1]])
    assert [answer.outcome for answer in turns.sender.failures] == outcomes[:-1]
    outcomes[0].observed = True  # looked at since
    turns.sender._note([failed(outcomes[-1])])
    assert [answer.outcome for answer in turns.sender.failures] == outcomes[1:]
    turns.sender._note([failed(BatchOutcome("t"))])
    assert len(turns.sender.failures) == most
    assert turns.sender.failures[0].outcome is outcomes[1]  # the first error is the one to raise


# ---------------------------------------------------------------- who is woken


# ---------------------------------------------------------------- a defect
