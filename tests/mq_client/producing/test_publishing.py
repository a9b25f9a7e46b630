"""What `publish` and `publish_batch` put into a topic, and into which partition, against a real broker. What can be
refused at once, and what becomes of errors, is in test_producer.py."""

from __future__ import annotations

import uuid as uuids
import zlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from mq_client import (
    Admin,
    BatchTooLarge,
    InvalidRequest,
    InvalidTopicName,
    Producer,
    Reader,
    UnknownPartition,
    UnknownTopic,
)
from mq_client.producing.splitting import piece_uuid
from mq_protocol.partitioner import partition_for_key

OWN = uuids.UUID(int=5)


def stored(bootstrap: str, topic: str, column: str = "value") -> dict[int, list[Any]]:
    """What that column has, by partition."""
    found: dict[int, list[Any]] = {}
    with Reader(bootstrap) as reader:
        for partition in reader.offsets(topic):
            for batch in reader.read(topic, partition):
                found.setdefault(partition, []).extend(batch.column(column).to_pylist())
    return found


def where(found: dict[int, list[Any]]) -> dict[Any, int]:
    return {value: partition for partition, values in found.items() for value in values}


def test_a_record_goes_to_the_partition_named_or_to_that_of_its_key(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    with Producer(bootstrap) as producer:
        for _ in range(2):  # the second time by the quick way
            producer.publish(topic, b"named", partition=2)
            producer.publish(topic, b"keyed", key=b"k")
            producer.publish(topic, b"both", key=b"k", partition=1)
    expected: dict[int, list[bytes]] = {}
    for partition, value in [(2, b"named"), (partition_for_key(b"k", 3), b"keyed"), (1, b"both")] * 2:
        expected.setdefault(partition, []).append(value)
    assert stored(bootstrap, topic) == expected


def test_a_record_keeps_all_that_it_has_among_others_that_have_nothing(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap, linger_ms=60_000) as producer:
        plain = [producer.publish(topic, b"plain") for _ in range(2)]
        own = producer.publish(topic, b"own", uuid=OWN)
        producer.publish(topic, None, key=bytearray(b"k"), timestamp=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
        producer.publish(topic, "headers", headers={"h": b"1"}, timestamp=7)
        producer.publish(topic, b"plain")
        producer.flush()
        assert [future.result(0).offset for future in (*plain, own)] == [0, 1, 2]
        again = producer.publish(topic, b"own", uuid=OWN)
        producer.flush()
        assert again.result(0).duplicate
    with Reader(bootstrap) as reader:
        rows = [row for batch in reader.read(topic, 0) for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [b"plain", b"plain", b"own", None, b"headers", b"plain"]
    assert [row["key"] for row in rows] == [None, None, None, b"k", None, None]
    assert rows[4]["headers"] == [{"key": "h", "value": b"1"}]
    assert [rows[at]["timestamp"] for at in (3, 4)] == [datetime.fromtimestamp(at, UTC) for at in (1, 7e-6)]
    assert [at for at, row in enumerate(rows) if row["headers"] is not None] == [4]


def test_a_record_a_row_and_one_of_a_table_may_be_just_as_large_as_the_topic_allows(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, record_bytes_max=1024)
    admin.create_topic(f"{topic}-rows", schema="s string", record_bytes_max=1024)
    with Producer(bootstrap) as producer:
        for _ in range(2):
            producer.publish(topic, b"v" * 1_000, key=b"k" * 24)
            with pytest.raises(BatchTooLarge, match=r"record of 1025 bytes is above .*record_bytes_max=1024"):
                producer.publish(topic, b"v" * 1_001, key=b"k" * 24)
        producer.publish(f"{topic}-rows", {"s": "x" * (1024 - 12)})
        with pytest.raises(BatchTooLarge, match="row of 1025 bytes"):
            producer.publish(f"{topic}-rows", {"s": "x" * (1025 - 12)})
        producer.publish_batch(topic, pa.table({"value": [b"x" * 1_024]}))
        with pytest.raises(BatchTooLarge, match="record of 1025 bytes"):
            producer.publish_batch(topic, pa.table({"value": [b"x" * 1_025]}))
    assert sum(map(len, stored(bootstrap, topic).values())) == 3


@pytest.mark.parametrize("partition", [3, -1])
def test_a_partition_that_is_not_there_is_refused_whichever_way_a_record_takes(
    bootstrap: str, admin: Admin, topic: str, partition: int
) -> None:
    admin.create_topic(topic, partitions=3)
    with Producer(bootstrap) as producer:
        for _ in range(2):
            with pytest.raises(UnknownPartition):
                producer.publish(topic, b"x", partition=partition)
            producer.publish(topic, b"x", partition=2)
        with pytest.raises(UnknownPartition):
            producer.publish_batch(topic, pa.table({"value": [b"x"]}), partition=partition)
        for name in ("a/b", "__transactions"):
            with pytest.raises(InvalidTopicName):
                producer.publish_batch(name, pa.table({"value": [b"x"]}))


def test_a_uuid_decides_the_partition_where_nothing_else_does(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    with Producer(bootstrap) as producer:
        producer.publish(topic, b"by uuid", uuid=OWN)
        producer.publish(topic, b"by key", uuid=uuids.UUID(int=6).bytes, key=b"k")
        producer.publish(topic, b"named", uuid=str(uuids.UUID(int=7)), partition=0)
        for wrong in ("x", b"short", bytes(16), 5):
            with pytest.raises(InvalidRequest, match="uuid"):
                producer.publish(topic, b"x", uuid=wrong)  # type: ignore[arg-type]
    assert where(stored(bootstrap, topic)) == {
        b"by uuid": zlib.crc32(OWN.bytes) % 3,
        b"by key": partition_for_key(b"k", 3),
        b"named": 0,
    }


def test_a_table_without_keys_goes_to_the_partitions_in_turn_piece_by_piece(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=3)
    values = [b"%04d" % number + b"x" * 1_000 for number in range(30)]
    with Producer(bootstrap, batch_bytes_max=4_096) as producer:
        placed = producer.publish_batch(topic, pa.table({"value": values})).result(30)
    assert len(placed.places) > 6
    found = stored(bootstrap, topic)
    assert sorted(found) == [0, 1, 2]
    assert sorted(value for each in found.values() for value in each) == values


def test_rows_of_a_table_go_by_their_keys_or_by_the_column_that_is_named(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=3)
    keys = pa.array([b"a", None, b"b", b"a"], pa.binary())
    with Producer(bootstrap) as producer:
        producer.publish_batch(topic, pa.table({"key": keys, "value": [b"1", b"2", b"3", b"4"]})).result(30)
        named = pa.table({"key": [b"same", b"same"], "value": [b"c", b"d"]})
        producer.publish_batch(topic, named, key_column="value").result(30)
    found = where(stored(bootstrap, topic))
    assert found[b"1"] == found[b"4"] == partition_for_key(b"a", 3)
    assert [found[value] for value in (b"3", b"c", b"d")] == [partition_for_key(key, 3) for key in (b"b", b"c", b"d")]


def test_pieces_of_a_table_have_uuids_that_depend_on_the_split() -> None:
    assert len({piece_uuid(OWN.bytes, *split) for split in ((0, 2, 5), (1, 2, 5), (0, 3, 5), (0, 2, 6))}) == 4


def test_a_block_raises_what_was_lost_unless_it_has_an_error_of_its_own(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    def lose(fails: bool) -> None:
        admin.create_topic(topic)
        with Producer(bootstrap, linger_ms=60_000) as producer:
            producer.publish(topic, b"lost")
            admin.delete_topic(topic)
            if fails:
                raise ZeroDivisionError

    with pytest.raises(UnknownTopic):
        lose(False)
    with pytest.raises(ZeroDivisionError):
        lose(True)
