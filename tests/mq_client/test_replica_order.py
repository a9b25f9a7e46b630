"""In which order replicas are asked, and which of their answers counts: pure, with a stand-in for the connection."""

from __future__ import annotations

from typing import Any

from mq_client.cluster.connection import TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.replicas import Replicas, known_offsets, replicas_of
from mq_client.errors import TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA
from mq_protocol.names import parse_settings


def view(*leaders: int, info: pb.TopicInfo | None = None) -> TopicView:
    partition = pb.PartitionInfo(partition=0, isr=[1, 2, 3], replicas=[1, 2, 3])
    told = info or pb.TopicInfo(partitions=[partition])
    settings = parse_settings({}, 3)
    return TopicView("t", "id", RECORD_SCHEMA, 0, False, settings, leaders, (1,) * len(leaders), told)


class Played:
    """Connections to brokers, of which these are live and the second one is near. Each says what it knows, or fails."""

    def __init__(self, *live: int, **says: pb.PartitionOffsets | TritonMQError) -> None:
        self._live, self._says = live, says

    def brokers(self) -> dict[int, str]:
        return {broker: f"b{broker}" for broker in self._live}

    def racks(self) -> dict[int, str]:
        return {2: "near"}

    def ask(self, address: str, *_: object) -> pb.ListOffsetsResponse:
        answer = self._says[address]
        if isinstance(answer, TritonMQError):
            raise answer
        return pb.ListOffsetsResponse(partitions=[answer])


def order(played: Any, read_from: str, rack: str = "", leader: int = 3) -> list[str]:
    return Replicas(played, read_from, rack).addresses(view(leader), 0)


def known(**says: pb.PartitionOffsets | TritonMQError) -> pb.PartitionOffsets:
    played: Any = Played(1, 2, 3, **says)
    return known_offsets(played, view(0), [0], Deadline(1_000))[0]


def log(end: int, start: int = 0) -> pb.PartitionOffsets:
    return pb.PartitionOffsets(partition=0, log_start_offset=start, log_end_offset=end)


def test_the_leader_is_asked_first_while_it_is_known_to_live_and_the_others_in_any_case() -> None:
    assert order(Played(1, 2, 3), "leader")[0] == "b3"
    assert sorted(order(Played(1, 2, 3), "leader")) == ["b1", "b2", "b3"]
    assert sorted(order(Played(1, 2), "leader")) == ["b1", "b2"]
    assert sorted(order(Played(1, 2), "leader", leader=0)) == ["b1", "b2"]
    assert order(Played(1, 2, 3), "any", "near")[0] == "b2"


def test_of_what_replicas_know_the_most_counts_whoever_answers_first() -> None:
    for ends in ((5, 9, 7), (9, 5, 7), (5, 7, 9)):
        assert known(**{f"b{n}": log(end) for n, end in enumerate(ends, 1)}).log_end_offset == 9
    assert known(b1=log(9, 3), b2=log(9, 7), b3=log(9, 5)).log_start_offset == 7, "retention has gone further there"


def test_a_replica_that_does_not_answer_or_has_an_error_says_nothing() -> None:
    refused = log(30)
    refused.error.message = "not here"
    assert known(b1=Unreachable("gone"), b2=log(2), b3=refused).log_end_offset == 2


def test_a_partition_that_moves_has_the_replicas_of_both_sides_each_once() -> None:
    info = pb.TopicInfo(
        partitions=[pb.PartitionInfo(partition=0), pb.PartitionInfo(partition=1, isr=[3, 1], replicas=[1, 4, 3])]
    )
    moving = view(0, 5, info=info)
    assert replicas_of(moving, 1) == [3, 1, 4, 5]
    assert replicas_of(moving, 0) == []


def test_readers_that_may_read_anywhere_are_spread_over_all_replicas() -> None:
    assert {order(Played(1, 2, 3), "any")[0] for _ in range(100)} == {"b1", "b2", "b3"}
    assert {tuple(order(Played(1, 2, 3), "leader")) for _ in range(100)} == {("b3", "b1", "b2"), ("b3", "b2", "b1")}
