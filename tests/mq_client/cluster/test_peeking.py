"""What a peek reads of each partition, and when it has enough. The test is the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mq_client import peek as peek_module
from mq_client.consuming.slices import StoredSlice
from mq_client.peek import peek, shared_out
from mq_client.producing.batches import records_to_batch
from mq_protocol import mq_pb2 as pb
from tests.mq_client.cluster.scripted import Scripted, topic_info


class Reads:
    """In the reader's place: notes what is read, and gives it as one piece of `sent_bytes` for each record."""

    asked: list[tuple[int, int, int, int]]
    sent_bytes = 10

    def __init__(self, connection: Scripted, timeout_ms: float) -> None:
        pass

    def read_stored(
        self, topic: str, partition: int, start: int, end: int, *, chunk_bytes_max: int, timeout_ms: float
    ) -> Iterator[StoredSlice]:
        Reads.asked.append((partition, start, end, chunk_bytes_max))
        count = end - start
        batch = records_to_batch([], [b"v"] * count, [], [0] * count)
        yield StoredSlice(start, end, 7, batch, sent_bytes=count * self.sent_bytes)


@pytest.fixture
def cluster_of(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A topic whose partitions have these logs (start, end)."""
    monkeypatch.setattr(peek_module, "Reader", Reads)
    monkeypatch.setattr(Reads, "asked", [], raising=False)

    def made(*logs: tuple[int, int]) -> Scripted:
        scripted.learn(topic_info(*[1] * len(logs)))

        def answer(address: str, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
            ends = [
                pb.PartitionOffsets(partition=number, log_start_offset=logs[number][0], log_end_offset=logs[number][1])
                for number in request.partitions
            ]
            return pb.ListOffsetsResponse(partitions=ends)

        scripted.answers["ListOffsets"] = answer
        return scripted

    return made


def test_each_partition_gives_its_share_from_the_groups_place_or_its_first_record(cluster_of: Any) -> None:
    scripted = cluster_of((5, 20), (0, 2), (3, 3), (0, 9))
    found = peek(scripted, "t", {0: 2, 1: 1, 3: 8}, 6, 1_000)
    assert [(record.partition, record.offset) for record in found] == [(0, 5), (0, 6), (0, 7), (0, 8), (1, 1), (3, 8)]
    assert [asked[:3] for asked in Reads.asked] == [(0, 5, 9), (1, 1, 2), (3, 8, 9)]
    assert [asked[3] for asked in Reads.asked] == [(16 << 20) // 3, ((16 << 20) - 40) // 3, ((16 << 20) - 50) // 3]


def test_a_peek_ends_with_its_bytes(cluster_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peek_module, "PEEK_BYTES_MAX", 30)
    scripted = cluster_of((0, 9), (0, 9), (0, 9))
    found = peek(scripted, "t", {}, 9, 1_000)
    assert [(record.partition, record.offset) for record in found] == [(0, 0), (0, 1), (0, 2)]
    assert [asked[0] for asked in Reads.asked] == [0]
    monkeypatch.setattr(peek_module, "PEEK_BYTES_MAX", 31)
    assert len(peek(scripted, "t", {}, 9, 1_000)) == 4  # there is always one


@pytest.mark.parametrize(
    ("count", "behind", "shares"),
    [
        (0, {0: 5}, {}),
        (3, {0: 0, 1: -2}, {}),
        (1, {2: 5, 1: 5}, {1: 1}),
        (7, {0: 1, 1: 9, 2: 3}, {0: 1, 1: 3, 2: 3}),
        (99, {0: 1, 1: 9, 2: 3}, {0: 1, 1: 9, 2: 3}),
    ],
)
def test_shares_are_even_and_no_larger_than_what_is_there(
    count: int, behind: dict[int, int], shares: dict[int, int]
) -> None:
    assert shared_out(count, behind) == shares
