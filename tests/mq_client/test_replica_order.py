"""In which order replicas are asked, and which of their answers counts: pure, with a stand-in for the connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mq_client.cluster.deadline import Deadline
from mq_client.cluster.replicas import Replicas, known_offsets, replicas_of
from mq_client.errors import Unreachable
from mq_protocol import mq_pb2 as pb


def view(leader: int) -> Any:
    partition = pb.PartitionInfo(partition=0, isr=[1, 2, 3], replicas=[1, 2, 3])
    return SimpleNamespace(name="t", leaders=(leader,), info=pb.TopicInfo(partitions=[partition]))


def connection(*live: int, ends: dict[int, int] | None = None) -> Any:
    def ask(address: str, *_: object) -> pb.ListOffsetsResponse:
        answer = pb.PartitionOffsets(partition=0, log_end_offset=(ends or {})[int(address)])
        return pb.ListOffsetsResponse(partitions=[answer])

    return SimpleNamespace(brokers=lambda: {broker: str(broker) for broker in live}, racks=lambda: {2: "near"}, ask=ask)


def test_the_leader_is_asked_first_while_it_is_known_to_live_and_the_others_in_any_case() -> None:
    assert Replicas(connection(1, 2, 3), "leader", "").addresses(view(3), 0)[0] == "3"
    assert sorted(Replicas(connection(1, 2, 3), "leader", "").addresses(view(3), 0)) == ["1", "2", "3"]
    assert sorted(Replicas(connection(1, 2), "leader", "").addresses(view(3), 0)) == ["1", "2"]
    assert sorted(Replicas(connection(1, 2), "leader", "").addresses(view(0), 0)) == ["1", "2"]
    assert Replicas(connection(1, 2, 3), "any", "near").addresses(view(3), 0)[0] == "2"


def test_of_what_replicas_know_the_most_counts_whoever_answers_first() -> None:
    for ends in ({1: 5, 2: 9, 3: 7}, {1: 9, 2: 5, 3: 7}, {1: 5, 2: 7, 3: 9}):
        found = known_offsets(connection(1, 2, 3, ends=ends), view(0), [0], Deadline(1_000))
        assert found[0].log_end_offset == 9


def test_a_replica_that_does_not_answer_or_has_an_error_says_nothing() -> None:
    def ask(address: str, *_: object) -> pb.ListOffsetsResponse:
        if address == "1":
            raise Unreachable("gone")
        answer = pb.PartitionOffsets(partition=0, log_end_offset=int(address))
        if address == "3":
            answer.error.message = "not here"
        return pb.ListOffsetsResponse(partitions=[answer])

    asked: Any = SimpleNamespace(brokers=lambda: {broker: str(broker) for broker in (1, 2, 3)}, ask=ask)
    assert known_offsets(asked, view(0), [0], Deadline(1_000))[0].log_end_offset == 2


def test_of_two_answers_that_end_alike_the_one_counts_whose_log_begins_later() -> None:
    starts = {"1": 3, "2": 7, "3": 5}

    def ask(address: str, *_: object) -> pb.ListOffsetsResponse:
        answer = pb.PartitionOffsets(partition=0, log_start_offset=starts[address], log_end_offset=9)
        return pb.ListOffsetsResponse(partitions=[answer])

    asked: Any = SimpleNamespace(brokers=lambda: {broker: str(broker) for broker in (1, 2, 3)}, ask=ask)
    assert known_offsets(asked, view(0), [0], Deadline(1_000))[0].log_start_offset == 7


def test_a_partition_that_moves_has_the_replicas_of_both_sides_each_once() -> None:
    info = pb.TopicInfo(
        partitions=[pb.PartitionInfo(partition=0), pb.PartitionInfo(partition=1, isr=[3, 1], replicas=[1, 4, 3])]
    )
    moving: Any = SimpleNamespace(name="t", leaders=(0, 5), info=info)
    assert replicas_of(moving, 1) == [3, 1, 4, 5]
    assert replicas_of(moving, 0) == []


def test_readers_that_may_read_anywhere_are_spread_over_all_replicas() -> None:
    replicas = Replicas(connection(1, 2, 3), "any", "")
    replicas._random.seed(1)
    assert {replicas.addresses(view(3), 0)[0] for _ in range(50)} == {"1", "2", "3"}
    others = Replicas(connection(1, 2, 3), "leader", "")
    others._random.seed(1)
    assert {tuple(others.addresses(view(3), 0)) for _ in range(50)} == {("3", "1", "2"), ("3", "2", "1")}
