"""Reading by offset: exactly the records asked for, whatever batches they are stored in."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from mq_client import (
    Admin,
    InvalidRequest,
    InvalidSetting,
    Producer,
    Reader,
    SchemaMismatch,
    UnknownPartition,
    UnknownTopic,
)
from mq_dev.local_cluster import LocalCluster


def numbers(batches: object) -> list[int]:
    return [n for batch in batches for n in batch.column("n").to_pylist()]  # type: ignore[attr-defined]


@pytest.fixture
def filled(admin: Admin, bootstrap: str, topic: str) -> str:
    """A topic of 1,000 rows in batches of several sizes, compressed and not."""
    admin.create_topic(topic, schema="n long, s string")
    random_, at = random.Random(1), 0
    while at < 1_000:
        count = min(random_.choice((1, 7, 100)), 1_000 - at)
        with Producer(bootstrap, compression=random_.choice((None, "lz4"))) as producer:
            producer.publish_batch(
                topic, pa.table({"n": range(at, at + count), "s": [f"s{i}" for i in range(at, at + count)]})
            ).result(30)
        at += count
    return topic


def test_exactly_the_offsets_asked_for_come(filled: str, bootstrap: str) -> None:
    random_ = random.Random(2)
    with Reader(bootstrap) as reader:
        for _ in range(30):
            start, end = sorted((random_.randint(0, 1_000), random_.randint(0, 1_000)))
            chunk = random_.choice((1, 1_000, 1 << 20))
            assert numbers(reader.read(filled, 0, start, end, chunk_bytes_max=chunk)) == list(range(start, end))
        assert numbers(reader.read(filled, 0)) == list(range(1_000))
        assert list(reader.read(filled, 0, 5, 5)) == []


def test_columns_are_picked(filled: str, bootstrap: str) -> None:
    with Reader(bootstrap) as reader:
        batches = list(reader.read(filled, 0, 3, 20, columns=["s"]))
        assert {tuple(batch.schema.names) for batch in batches} == {("s",)}
        assert [s for batch in batches for s in batch.column("s").to_pylist()] == [f"s{i}" for i in range(3, 20)]
        assert sum(batch.num_rows for batch in reader.read(filled, 0, 3, 20, columns=[])) == 17
        with pytest.raises(SchemaMismatch, match="no column 'ss': did you mean 's'"):
            list(reader.read(filled, 0, columns=["ss"]))


def test_columns_that_are_not_asked_for_never_leave_the_broker(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema="n long, text string, s string")
    for compression in (None, "lz4", "zstd"):
        with Producer(bootstrap, compression=compression) as producer:
            table = pa.table(
                {"n": range(500), "text": [f"{i:0200}" for i in range(500)], "s": [str(i) for i in range(500)]}
            )
            producer.publish_batch(topic, table, partition=0).result(30)
    cost: dict[str, int] = {}
    for columns in (None, ["n", "text", "s"], ["s", "n"], ["n"], []):
        with Reader(bootstrap) as reader:
            batches = list(reader.read(topic, 0, 7, 1_490, columns=columns))
            assert sum(batch.num_rows for batch in batches) == 1_483
            if columns == ["s", "n"]:
                assert pa.Table.from_batches(batches).column("s").to_pylist() == [str(i % 500) for i in range(7, 1_490)]
            cost[str(columns)] = reader.payload_bytes
    assert cost["None"] == cost["['n', 'text', 's']"]
    assert cost["[]"] < cost["['n']"] < cost["['s', 'n']"] < cost["None"] / 4


def test_a_projection_that_leaves_out_next_to_nothing_costs_the_broker_nothing(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)
    # One batch however slow this machine is: flush alone closes it
    with Producer(bootstrap, linger_ms=60_000) as producer:
        for number in range(100):
            producer.publish(topic, b"v" * 100, key=str(number), partition=0)
        producer.flush()
    with Reader(bootstrap) as whole, Reader(bootstrap) as most, Reader(bootstrap) as keys:
        assert sum(batch.num_rows for batch in whole.read(topic, 0)) == 100
        (batch,) = most.read(topic, 0, columns=["timestamp", "value"])
        assert batch.schema.names == ["timestamp", "value"]
        assert most.payload_bytes == whole.payload_bytes
        assert [key for batch in keys.read(topic, 0, columns=["key"]) for key in batch.column("key").to_pylist()][
            7
        ] == b"7"
        assert keys.payload_bytes < whole.payload_bytes / 5


def test_rows_that_a_filter_does_not_keep_never_leave_the_broker(filled: str, bootstrap: str) -> None:
    with Reader(bootstrap) as everything, Reader(bootstrap) as reader:
        assert len(numbers(everything.read(filled, 0))) == 1_000
        assert numbers(reader.read(filled, 0, filter="n in (3, 500) or n >= 998")) == [3, 500, 998, 999]
        assert reader.payload_bytes < everything.payload_bytes / 2
        assert numbers(reader.read(filled, 0, 100, 103, filter="n != 101")) == [100, 102]
        batches = list(reader.read(filled, 0, 0, 20, columns=["s"], filter="n > 17"))
        assert [row for batch in batches for row in batch.to_pylist()] == [{"s": "s18"}, {"s": "s19"}]
        assert sum(batch.num_rows for batch in reader.read(filled, 0, columns=[], filter="n < 10")) == 10
        assert list(reader.read(filled, 0, filter="n is null")) == []


def test_what_a_filter_keeps_says_which_offsets_it_has(filled: str, bootstrap: str) -> None:
    with Reader(bootstrap) as reader:
        at, offsets = 5, []
        for piece in reader.read_stored(filled, 0, 5, 900, filter="n < 9 or n = 700", chunk_bytes_max=1):
            assert piece.base_offset == at
            at = piece.end_offset
            assert piece.offsets is not None
            assert piece.offsets.tolist() == piece.batch.column("n").to_pylist()
            offsets += piece.offsets.tolist()
        assert (at, offsets) == (900, [5, 6, 7, 8, 700])


def test_a_filter_that_cannot_be_is_refused_before_anything_is_sent(
    admin: Admin, bootstrap: str, filled: str, topic: str
) -> None:
    admin.create_topic(topic + "r")
    with Reader(bootstrap) as reader:
        with pytest.raises(InvalidSetting, match="filter names column 'm', which the topic does not have"):
            reader.read_stored(filled, 0, filter="m = 1")
        admin.create_topic(topic + "d", schema="d decimal(8,2)")
        with pytest.raises(
            InvalidSetting, match="filter has a number of 401 characters at character 5: at most 400 are"
        ):
            reader.read_stored(topic + "d", 0, filter="d = 1" + "0" * 400)
        with Producer(bootstrap) as producer:
            producer.publish(topic + "r", b"x").result(30)
        with pytest.raises(InvalidRequest, match="filter needs a topic with columns of its own"):
            list(reader.read(topic + "r", 0, filter="key is null"))


def test_wrong_questions_are_refused_when_they_are_asked(filled: str, bootstrap: str) -> None:
    with Reader(bootstrap) as reader:
        with pytest.raises(UnknownPartition):
            reader.read_stored(filled, 1)
        with pytest.raises(UnknownTopic):
            reader.read_stored(filled + "x", 0)
        for start, end in ((-1, 5), (5, 4)):
            with pytest.raises(InvalidRequest):
                reader.read_stored(filled, 0, start, end)
        with pytest.raises(InvalidSetting, match="max_bytes"):
            reader.read(filled, 0, max_bytes=0)
        with pytest.raises(InvalidSetting, match="give 'leader' or 'any'"):
            Reader(bootstrap, read_from="leder")


def test_a_read_past_the_end_gives_what_is_published_while_it_waits(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema="n long")
    with Producer(bootstrap) as producer, Reader(bootstrap) as reader:
        producer.publish_batch(topic, pa.table({"n": [0]})).result(30)
        read = reader.read(topic, 0, 0, 3)
        assert numbers([next(read)]) == [0]
        producer.publish_batch(topic, pa.table({"n": [1, 2, 3]})).result(30)
        assert numbers(read) == [1, 2]


def test_a_read_ends_before_more_bytes_than_wanted_and_gives_one_record_at_least(filled: str, bootstrap: str) -> None:
    with Reader(bootstrap) as reader:
        assert numbers(reader.read(filled, 0, 10, max_bytes=1)) == [10]
        for bytes_max in (2_000, 5_000, 1 << 20):
            given = numbers(reader.read(filled, 0, max_bytes=bytes_max))
            assert given == list(range(len(given)))
            sent = sum(piece.sent_bytes for piece in reader.read_stored(filled, 0, 0, len(given)))
            assert sent <= bytes_max
            assert len(given) == 1_000 or sent > bytes_max / 2
        kept = numbers(reader.read(filled, 0, filter="n >= 500", max_bytes=1_500))
        assert kept == list(range(500, 500 + len(kept)))
        assert 0 < len(kept) < 500


def test_a_reader_that_stops_early_leaves_nothing_open(filled: str, bootstrap: str) -> None:
    with Reader(bootstrap) as reader:
        for _ in range(50):
            pieces = reader.read(filled, 0, chunk_bytes_max=1)
            next(pieces)
            pieces.close()  # type: ignore[attr-defined]
        assert reader.offsets(filled) == {0: (0, 1_000)}


@pytest.mark.cluster
def test_a_broker_that_dies_under_a_reader_is_waited_for_and_read_on_from_there(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, Admin(cluster.bootstrap) as admin, Reader(cluster.bootstrap) as reader:
        admin.create_topic("t", schema="n long")
        with Producer(cluster.bootstrap, batch_bytes_max=40_000) as producer:
            producer.publish_batch("t", pa.table({"n": range(500_000)})).result(30)
        found: list[int] = []
        for batch in reader.read("t", 0, chunk_bytes_max=1):
            if not found:
                cluster.kill(1)
                cluster.restart(1, wait=False)
            found += batch.column("n").to_pylist()
        assert found == list(range(500_000))


def test_who_names_a_topic_by_its_id_does_not_read_another_of_that_name(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    former = admin.create_topic(topic).topic_id
    with Reader(bootstrap) as reader, Producer(bootstrap) as producer:
        producer.publish(topic, b"former").result(30)
        assert [each.end_offset for each in reader.read_stored(topic, 0, 0, 1, columns=["value"], topic_id=former)] == [
            1
        ]
        admin.delete_topic(topic)
        admin.create_topic(topic)
        producer.publish(topic, b"present").result(30)
        with pytest.raises(UnknownTopic, match="made again"):  # the reader has not heard of that one yet
            list(reader.read_stored(topic, 0, 0, 1, columns=["value"], topic_id=former))


def test_a_partition_that_has_been_added_is_read_by_who_knew_the_topic_before(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)
    with Reader(bootstrap) as reader:
        assert reader.offsets(topic) == {0: (0, 0)}
        admin.alter_topic(topic, partitions=2)
        with Producer(bootstrap) as producer:
            producer.publish(topic, b"x", partition=1).result(30)
        assert [batch.column("value").to_pylist() for batch in reader.read(topic, 1)] == [[b"x"]]
