"""Questions to the leaders of many partitions: each leader is asked once, and again of what it could not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pytest

from mq_client.cluster import requests as leaders
from mq_client.cluster.connection import TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.requests import ask_leaders, ask_offsets, delete_group, move_cursors, purge, topic_with
from mq_client.errors import (
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    PartitionUnavailable,
    SchemaMismatch,
    UnknownPartition,
    Unreachable,
)
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import check_label
from mq_protocol.wire.error_messages import to_wire
from tests.mq_client.cluster.scripted import Clock, Scripted, told, topic_info

MINUTE = 60_000.0


class Leaders:
    """Owns what the leaders answer: a partition's end, or an error. Notes which were asked of which."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int]]] = []
        self.allowed_s: list[float] = []
        self.answer: Callable[[str, int], int | Exception] = lambda address, number: number

    def __call__(self, address: str, numbers: list[int], limit: Deadline) -> Iterable[pb.PartitionOffsets]:
        self.asked.append((address, list(numbers)))
        self.allowed_s.append(limit.remaining_s)
        found = []
        for number in numbers:
            answer = self.answer(address, number)
            if isinstance(answer, Exception):
                error = to_wire(answer)  # type: ignore[arg-type]
                found.append(pb.PartitionOffsets(partition=number, error=error))
            else:
                found.append(pb.PartitionOffsets(partition=number, log_end_offset=answer))
        return found


@pytest.fixture
def ask() -> Leaders:
    return Leaders()


def live(scripted: Scripted, *topics: pb.TopicInfo) -> None:
    """All brokers say so from now on."""
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(*topics))


def ends(answers: dict[int, pb.PartitionOffsets]) -> dict[int, int]:
    return {number: answer.log_end_offset for number, answer in answers.items()}


# ---------------------------------------------------------------- each leader once


def test_each_leader_is_asked_once_for_all_that_it_leads(scripted: Scripted, ask: Leaders) -> None:
    scripted.learn(topic_info(1, 2, 1))
    assert ends(ask_leaders(scripted, "t", None, ask, Deadline(MINUTE))) == {0: 0, 2: 2, 1: 1}
    assert ask.asked == [("b:1", [0, 2]), ("b:2", [1])]
    assert ask.allowed_s == [5.0, 5.0]


def test_only_the_partitions_named_are_asked_for_each_once(scripted: Scripted, ask: Leaders) -> None:
    scripted.learn(topic_info(1, 2, 1))
    assert ends(ask_leaders(scripted, "t", [2, 0, 2], ask, Deadline(MINUTE))) == {2: 2, 0: 0}
    assert ask.asked == [("b:1", [2, 0])]
    assert ask_leaders(scripted, "t", [], ask, Deadline(MINUTE)) == {}


def test_what_a_leader_could_not_answer_is_asked_of_the_one_that_it_names(
    scripted: Scripted, clock: Clock, ask: Leaders
) -> None:
    scripted.learn(topic_info(1, 1))
    clock.now += 1
    live(scripted, topic_info(1, 1))
    ask.answer = lambda address, number: NotLeader("2 does", 2, 2) if (address, number) == ("b:1", 1) else 7
    assert ends(ask_leaders(scripted, "t", None, ask, Deadline(MINUTE))) == {0: 7, 1: 7}
    assert ask.asked == [("b:1", [0, 1]), ("b:2", [1])]
    assert len(clock.slept) == 1


def test_a_leader_that_cannot_be_reached_holds_up_nobody_else(scripted: Scripted, clock: Clock, ask: Leaders) -> None:
    scripted.learn(topic_info(1, 2))
    clock.now += 1
    live(scripted, topic_info(3, 2, epoch=2))

    def answer(address: str, number: int) -> int:
        if address == "b:1":
            raise Unreachable("gone")
        return 7

    ask.answer = answer
    assert ends(ask_leaders(scripted, "t", None, ask, Deadline(MINUTE))) == {1: 7, 0: 7}
    assert ask.asked == [("b:1", [0]), ("b:2", [1]), ("b:3", [0])]


@pytest.mark.parametrize("within", [True, False])
def test_a_refusal_is_raised_whether_it_is_of_one_partition_or_of_all(
    scripted: Scripted, ask: Leaders, within: bool
) -> None:
    scripted.learn(topic_info(1, 1))

    def answer(address: str, number: int) -> Exception:
        if within:
            return InvalidRequest("no")
        raise InvalidRequest("no")

    ask.answer = answer
    with pytest.raises(InvalidRequest):
        ask_leaders(scripted, "t", None, ask, Deadline(MINUTE))
    assert len(ask.asked) == 1


def test_at_the_deadline_it_says_which_did_not_answer_and_why(scripted: Scripted, clock: Clock, ask: Leaders) -> None:
    scripted.learn(topic_info(1, 1, 0))
    live(scripted, topic_info(1, 1, 0))
    ask.answer = lambda address, number: Overloaded("busy") if number == 1 else 7
    began = clock.now
    with pytest.raises(OutcomeUnknown, match=r"'t': partitions \[1, 2\] did not answer within 2000 ms, last: busy"):
        ask_leaders(scripted, "t", None, ask, Deadline(2_000))
    assert clock.now - began == pytest.approx(2.0)
    with pytest.raises(
        PartitionUnavailable, match=r"partitions \[2\] did not answer within 50 ms: no leader was known"
    ):
        ask_leaders(scripted, "t", [2], ask, Deadline(50), late=PartitionUnavailable)


# ---------------------------------------------------------------- replicas in a leader's place


def test_replicas_answer_for_a_partition_that_is_without_a_leader_longer_than_an_election_takes(
    scripted: Scripted, clock: Clock, ask: Leaders
) -> None:
    scripted.learn(topic_info(0, 0, 1))
    live(scripted, topic_info(0, 0, 1))
    began, asked_at = clock.now, []

    def instead(view: TopicView, numbers: list[int]) -> dict[int, pb.PartitionOffsets]:
        asked_at.append(clock.now - began)
        return {0: pb.PartitionOffsets(partition=0, log_end_offset=5)} if len(asked_at) == 1 else dict.fromkeys(numbers)  # type: ignore[arg-type]

    answers = ask_leaders(scripted, "t", None, ask, Deadline(MINUTE), instead=instead)
    assert sorted(answers) == [0, 1, 2]
    election_s = leaders._ELECTION_MS / 1000
    assert election_s <= asked_at[0] < election_s + 0.5
    assert len(asked_at) == 2  # what they left out is asked again
    asked_at.clear()
    began = clock.now
    ask_leaders(scripted, "t", [0, 1], ask, Deadline(2_000), instead=instead)
    assert 1.0 <= asked_at[0] < 1.5  # with little time, half of it is for the leaders


def test_offsets_are_those_of_replicas_where_nobody_leads_and_that_is_allowed(scripted: Scripted) -> None:
    scripted.learn(topic_info(0))
    live(scripted, topic_info(0))

    def answer(address: str, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        assert request.any_replica
        return pb.ListOffsetsResponse(partitions=[pb.PartitionOffsets(partition=0, log_end_offset=int(address[2:]))])

    scripted.answers["ListOffsets"] = answer
    assert ask_offsets(scripted, "t", Deadline(4_000), or_replicas=True)[0].log_end_offset == 3
    with pytest.raises(PartitionUnavailable):
        ask_offsets(scripted, "t", Deadline(4_000))


# ---------------------------------------------------------------- requests


def answered(scripted: Scripted, method: str, response: type, field: str = "partitions") -> None:
    def answer(address: str, request: object) -> object:
        numbers = [each.partition for each in request.positions] if hasattr(request, "positions") else None  # type: ignore[attr-defined]
        if numbers is None:
            numbers = [getattr(each, "partition", each) for each in request.partitions]  # type: ignore[attr-defined]
        return response(
            partitions=[
                pb.PartitionOffsets(partition=n, log_start_offset=n + 1, log_end_offset=n + 10) for n in numbers
            ]
        )

    scripted.answers[method] = answer  # type: ignore[assignment]


def test_a_purge_says_where_each_log_starts_now(scripted: Scripted) -> None:
    scripted.learn(topic_info(1, 2, 2))
    answered(scripted, "Purge", pb.PurgeResponse)
    assert list(purge(scripted, "t", {2: 30, 0: 10}, Deadline(MINUTE)).items()) == [(0, 1), (2, 3)]
    asked = {
        address: [(each.partition, each.offset) for each in request.positions] for address, _, request in scripted.asked
    }
    assert asked == {"b:2": [(2, 30)], "b:1": [(0, 10)]}


def test_a_group_is_deleted_in_every_topic_that_is_named(scripted: Scripted) -> None:
    scripted.learn(topic_info(1, 2), topic_info(3, name="u"))
    answered(scripted, "DeleteGroup", pb.DeleteGroupResponse)
    delete_group(scripted, "g", {"t": [0, 1], "u": [0]}, Deadline(MINUTE), force=True)
    asked = [
        (address, request.group, request.force, [(p.topic, p.partition) for p in request.partitions])
        for address, _, request in scripted.asked
    ]
    assert asked == [("b:1", "g", True, [("t", 0)]), ("b:2", "g", True, [("t", 1)]), ("b:3", "g", True, [("u", 0)])]


def test_cursors_are_moved_and_the_ends_of_the_logs_are_told(scripted: Scripted) -> None:
    scripted.learn(topic_info(1, 1), topic_info(3, name="u"))
    answered(scripted, "MoveCursors", pb.MoveCursorsResponse)
    positions = {"t": {1: 5, 0: 4}, "none": {}, "u": {0: 6}}
    assert move_cursors(scripted, "g", positions, Deadline(MINUTE), member_id="m") == {
        "t": {1: 11, 0: 10},
        "u": {0: 10},
    }
    first, second = [request for _, _, request in scripted.asked]
    assert (first.group, first.kind, first.member_id, first.reset) == ("g", "consumer", "m", False)
    assert [(p.topic, p.partition, p.offset) for p in first.positions] == [("t", 1, 5), ("t", 0, 4)]
    assert [(p.topic, p.partition, p.offset) for p in second.positions] == [("u", 0, 6)]
    move_cursors(scripted, "g", {"u": {0: 1}}, Deadline(MINUTE), kind="spark", reset=True)
    assert (scripted.asked[-1][2].kind, scripted.asked[-1][2].reset) == ("", True)


def test_a_name_of_any_length_and_with_any_characters_is_told_as_what_brokers_take_for_a_label(
    scripted: Scripted,
) -> None:
    scripted.learn(topic_info(1))
    answered(scripted, "MoveCursors", pb.MoveCursorsResponse)
    move_cursors(scripted, "g", {"t": {0: 4}}, Deadline(MINUTE), kind="spark", label="orders\n" + 1_000 * "x")
    told = scripted.asked[-1][2].label
    assert told.startswith("orders x")
    check_label(told)


# ---------------------------------------------------------------- a topic that has just been changed


ONE = pa.schema([("a", pa.int64())])
TWO = pa.schema([("a", pa.int64()), ("b", pa.int64())])


def test_a_partition_that_was_just_added_is_asked_for_before_it_is_an_error(scripted: Scripted, clock: Clock) -> None:
    scripted.learn(topic_info(1))
    clock.now += 1
    live(scripted, topic_info(1, 1))
    assert topic_with(scripted, "t", [0], Deadline(MINUTE)).partitions == 1
    assert scripted.asked == []
    assert topic_with(scripted, "t", [1], Deadline(MINUTE)).partitions == 2
    assert clock.slept == []
    began = clock.now
    with pytest.raises(UnknownPartition, match="no partition 2: it has 0 to 1"):
        topic_with(scripted, "t", [2], Deadline(MINUTE))
    assert clock.now - began == pytest.approx(1.0)


def test_a_column_that_was_just_added_is_asked_for_and_a_wrong_one_is_named(scripted: Scripted, clock: Clock) -> None:
    scripted.learn(topic_info(1, schema=ONE))
    clock.now += 1
    live(scripted, topic_info(1, schema=TWO))
    assert topic_with(scripted, "t", [0], Deadline(MINUTE), columns=["a", "b"]).schema == TWO
    with pytest.raises(SchemaMismatch, match=r"no column 'bb'.*did you mean 'b'"):
        topic_with(scripted, "t", [], Deadline(MINUTE), columns=["bb"])


def test_if_nobody_answers_a_second_time_the_first_word_stands(scripted: Scripted, clock: Clock) -> None:
    scripted.learn(topic_info(1), brokers=1)
    scripted._answered = "b:1"
    clock.now += 1
    said = iter([told(topic_info(1), brokers=1)])
    scripted.brokers_say = {"b:1": lambda request: next(said, Unreachable("gone"))}
    with pytest.raises(UnknownPartition):
        topic_with(scripted, "t", [1], Deadline(3_000))
    with pytest.raises(Unreachable):  # nobody has said a word since it was asked
        topic_with(scripted, "t", [1], Deadline(3_000))
