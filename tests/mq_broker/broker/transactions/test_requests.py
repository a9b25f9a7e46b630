"""What a request about transactions may say, at the edge of what it may say."""

from __future__ import annotations

import pytest

from mq_broker.broker.transactions.requests import check_attempt, check_manifest, key_of, uuids_of
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest
from mq_protocol.limits import ID_BYTES_MAX, MANIFEST_BYTES_MAX

UUID = b"u" * 16
UUID_BYTES = 18
"""In a list of a message."""


def decision(**fields: object) -> pb.DecideRequest:
    line = pb.StagedBatches(topic="t", partition=0, uuids=[UUID], row_count=2)
    return pb.DecideRequest(**{"batch_id": 1, "run_id": "run", "row_count": 2, "manifest": [line], **fields})  # type: ignore[arg-type]


def test_a_manifest_may_be_as_large_as_the_bound_and_no_larger() -> None:
    line = pb.StagedBatches(
        topic="t", partition=0, uuids=[UUID] * ((MANIFEST_BYTES_MAX - 1_000) // UUID_BYTES), row_count=2
    )
    room = MANIFEST_BYTES_MAX - decision(manifest=[line], run_id="r" * 500).ByteSize()
    check_manifest(decision(manifest=[line], run_id="r" * (500 + room)))
    with pytest.raises(InvalidRequest, match="write fewer, larger batches"):
        check_manifest(decision(manifest=[line], run_id="r" * (501 + room)))


@pytest.mark.parametrize("kind", [pb.PublishRequest, pb.DiscardRequest, pb.AreStagedRequest])
def test_a_list_of_batches_may_be_as_large_as_the_bound_and_no_larger(
    kind: type[pb.PublishRequest],
) -> None:
    most = MANIFEST_BYTES_MAX // UUID_BYTES
    assert len(uuids_of(kind(uuids=[UUID] * most))) == most
    with pytest.raises(InvalidRequest, match=f"{most + 1} batches are more than one entry holds: name fewer"):
        uuids_of(kind(uuids=[UUID] * (most + 1)))


@pytest.mark.parametrize("name", [b"", b"u" * 15, b"u" * 17])
def test_a_batch_is_named_by_16_bytes(name: bytes) -> None:
    with pytest.raises(InvalidRequest, match="UUIDs of 16 bytes"):
        uuids_of(pb.PublishRequest(uuids=[UUID, name]))
    with pytest.raises(InvalidRequest, match="UUIDs of 16 bytes"):
        check_manifest(decision(manifest=[pb.StagedBatches(topic="t", uuids=[UUID, name], row_count=2)]))


@pytest.mark.parametrize("topic", ["", "__transactions"])
def test_a_manifest_names_only_topics_of_users(topic: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name topic"):
        check_manifest(decision(manifest=[pb.StagedBatches(topic=topic, uuids=[UUID], row_count=2)]))


def test_the_id_of_a_run_may_be_as_long_as_the_bound_and_no_longer() -> None:
    check_manifest(decision(run_id="r" * ID_BYTES_MAX))
    with pytest.raises(InvalidRequest, match=r"a run id of .* bytes is too long"):
        check_manifest(decision(run_id="r" * (ID_BYTES_MAX + 1)))


def test_a_run_of_a_queue_group_is_an_attempt_whose_end_a_leader_can_tell() -> None:
    for run_id in ("lease:3.17.0", "epoch:3"):
        check_attempt(run_id)
    for run_id in ("", "run", "lease:3.17", "epoch:", "epoch:x", "xepoch:3", "epoch:3 "):
        with pytest.raises(InvalidRequest, match="is no attempt of a queue group"):
            check_attempt(run_id)


@pytest.mark.parametrize("part", ["query id", "sink"])
def test_each_part_of_a_key_may_be_as_long_as_the_bound_and_no_longer(part: str) -> None:
    def key(length: int) -> pb.TransactionKey:
        return pb.TransactionKey(**{"query_id": "q", "sink": "s", part.replace(" ", "_"): "k" * length})  # type: ignore[arg-type]

    key_of(key(ID_BYTES_MAX))
    with pytest.raises(InvalidRequest, match=f"a {part} of .* bytes is too long"):
        key_of(key(ID_BYTES_MAX + 1))


def test_the_rows_of_a_manifest_add_up() -> None:
    with pytest.raises(InvalidRequest, match="have 2 rows, the decision claims 3"):
        check_manifest(decision(row_count=3))
