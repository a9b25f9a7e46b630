"""In which order replicas are asked, and which of their answers counts: pure, with a stand-in for the connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mq_client.cluster.deadline import Deadline
from mq_client.cluster.replicas import Replicas, known_offsets
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
    assert sorted(Replicas(connection(1, 2), "leader", "").addresses(view(3), 0)) == ["1", "2"]
    assert sorted(Replicas(connection(1, 2), "leader", "").addresses(view(0), 0)) == ["1", "2"]
    assert Replicas(connection(1, 2, 3), "any", "near").addresses(view(3), 0)[0] == "2"


def test_of_what_replicas_know_the_most_counts_whoever_answers_first() -> None:
    for ends in ({1: 5, 2: 9, 3: 7}, {1: 9, 2: 5, 3: 7}, {1: 5, 2: 7, 3: 9}):
        found = known_offsets(connection(1, 2, 3, ends=ends), view(0), [0], Deadline(1_000))
        assert found[0].log_end_offset == 9
