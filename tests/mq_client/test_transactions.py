"""Staging and deciding against a real broker: invisible until decided, decided once, the same answer when asked
again."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from mq_client import (
    Admin,
    BatchTooLarge,
    FencedRun,
    InvalidRequest,
    Reader,
    ReplayMismatch,
    SchemaMismatch,
    StaleMicroBatch,
    UnknownPartition,
    UnknownTopic,
)
from mq_client.transactions import StagedPart, TransactionClient, TransactionKey


@pytest.fixture
def key(topic: str) -> TransactionKey:
    return TransactionKey(uuid.uuid4().hex, topic)


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def stored(bootstrap: str, topic: str, partition: int = 0) -> list[int]:
    with Reader(bootstrap) as reader:
        return [n for batch in reader.read(topic, partition) for n in batch.column("n").to_pylist()]


@pytest.fixture
def client(bootstrap: str, admin: Admin, topic: str) -> TransactionClient:
    admin.create_topic(topic, partitions=2, schema="n long NOT NULL")
    return TransactionClient(bootstrap)


def test_what_is_staged_is_seen_only_once_decided(
    client: TransactionClient, bootstrap: str, topic: str, key: TransactionKey
) -> None:
    with client:
        stage = client.open_stage(key, 0, "run-1")
        stage.add(topic, 0, rows(1, 2))
        stage.add(topic, 1, rows(3))
        stage.add(topic, 0, rows(4))
        parts = stage.finish()
        assert [(part.partition, part.row_count, len(part.uuids)) for part in parts] == [(0, 3, 2), (1, 1, 1)]
        assert [(batch.partition, batch.batch_id, batch.row_count) for batch in client.staged(topic)] == [
            (0, 0, 2),
            (0, 0, 1),
            (1, 0, 1),
        ]
        assert stored(bootstrap, topic) == []
        decided = client.decide(key, 0, "run-1", parts)
        assert (decided.already_decided, decided.row_count, decided.published) == (False, 4, True)
        assert stored(bootstrap, topic) == [1, 2, 4]
        assert stored(bootstrap, topic, 1) == [3]
        assert client.staged(topic) == []


def test_deciding_again_changes_nothing(
    client: TransactionClient, bootstrap: str, topic: str, key: TransactionKey
) -> None:
    with client:
        first, second = (client.stage(topic, 0, [rows(n, n)], key, 5, "run-1") for n in (1, 2))
        assert not client.decide(key, 5, "run-1", [StagedPart(topic, 0, tuple(first), 2)]).already_decided
        again = client.decide(key, 5, "run-1", [StagedPart(topic, 0, tuple(second), 2)])
        assert (again.already_decided, again.row_count) == (True, 2)
        assert stored(bootstrap, topic) == [1, 1]
        status = client.transaction_status(key)
        assert status is not None
        assert (status.batch_id, status.run_id, status.row_count, status.published) == (5, "run-1", 2, True)


def test_a_replay_with_other_rows_is_refused_unless_it_is_to_be_kept(
    client: TransactionClient, bootstrap: str, topic: str, key: TransactionKey
) -> None:
    with client:
        client.decide(key, 0, "r", [StagedPart(topic, 0, tuple(client.stage(topic, 0, [rows(1)], key, 0, "r")), 1)])
        wider = [StagedPart(topic, 0, tuple(client.stage(topic, 0, [rows(1, 2)], key, 0, "r")), 2)]
        with pytest.raises(ReplayMismatch):
            client.decide(key, 0, "r", wider)
        assert client.decide(key, 0, "r", wider, keep_on_mismatch=True).row_count == 1
        assert stored(bootstrap, topic) == [1]


def test_earlier_micro_batches_and_earlier_runs_are_refused(
    client: TransactionClient, topic: str, key: TransactionKey
) -> None:
    with client:
        client.decide(key, 3, "run-1", [])
        with pytest.raises(StaleMicroBatch):
            client.decide(key, 2, "run-1", [])
        client.decide(key, 4, "run-2", [])
        with pytest.raises(FencedRun):
            client.decide(key, 5, "run-1", [])


def test_an_unknown_key_has_no_status_and_none_can_be_made_up(
    client: TransactionClient, topic: str, key: TransactionKey
) -> None:
    with client:
        assert client.transaction_status(key) is None
        with pytest.raises(InvalidRequest, match="query id"):
            client.open_stage(("", topic), 0, "r")


def test_a_large_table_is_staged_as_several_batches(
    client: TransactionClient, bootstrap: str, topic: str, key: TransactionKey
) -> None:
    with client:
        uuids = client.stage(topic, 0, [rows(*range(300_000))], key, 0, "r")
        assert len(uuids) > 2
        client.decide(key, 0, "r", [StagedPart(topic, 0, tuple(uuids), 300_000)])
        assert stored(bootstrap, topic) == list(range(300_000))


def test_what_does_not_fit_is_refused_when_it_is_added(
    client: TransactionClient, admin: Admin, topic: str, key: TransactionKey
) -> None:
    admin.create_topic(f"{topic}-small", record_bytes_max=1_024)
    with client:
        stage = client.open_stage(key, 0, "r")
        with pytest.raises(SchemaMismatch, match="'n'"):
            stage.add(topic, 0, pa.table({"n": ["x"]}))
        with pytest.raises(UnknownPartition):
            stage.add(topic, 2, rows(1))
        with pytest.raises(UnknownTopic):
            stage.add(topic + "x", 0, rows(1))
        with pytest.raises(BatchTooLarge, match="record of 1025 bytes"):
            stage.add(f"{topic}-small", 0, pa.table({"value": [bytes(1_025)]}))
        assert stage.finish() == []
