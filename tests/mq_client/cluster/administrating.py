"""An administrator whose brokers the test plays."""

from __future__ import annotations

from typing import Any

from mq_client.errors import (
    Unreachable,
)
from mq_protocol import mq_pb2 as pb
from tests.mq_client.cluster.scripted import Scripted, told

GONE = Unreachable("gone")


def say(scripted: Scripted, *topics: pb.TopicInfo, **more: Any) -> None:
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(*topics, **more))


def answers(scripted: Scripted, method: str, *given: Any) -> list[Any]:
    """One after the other, whoever is asked; the last for ever. The requests, as they come."""
    left, requests = list(given), []

    def answer(address: str, request: Any) -> Any:
        requests.append(request)
        return left.pop(0) if len(left) > 1 else left[0]

    scripted.answers[method] = answer
    return requests


def offsets(scripted: Scripted, *ends: tuple[int, int, int]) -> list[Any]:
    """Start, end and offset at a time of each partition."""

    def answer(address: str, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        found = [
            pb.PartitionOffsets(
                partition=number,
                log_start_offset=ends[number][0],
                log_end_offset=ends[number][1],
                offset_at_timestamp=ends[number][2],
                bytes=100 + number,
            )
            for number in request.partitions
        ]
        requests.append(request)
        return pb.ListOffsetsResponse(partitions=found)

    requests: list[Any] = []
    scripted.answers["ListOffsets"] = answer
    return requests
