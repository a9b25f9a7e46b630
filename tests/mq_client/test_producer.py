"""The producer against a real broker: what is acknowledged is there once, in order; what cannot be is told at once and
clearly."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from mq_client import (
    Admin,
    BatchTooLarge,
    InternalError,
    InvalidRequest,
    InvalidSetting,
    InvalidTopicName,
    NotSent,
    OutcomeUnknown,
    Overloaded,
    Producer,
    Reader,
    SchemaMismatch,
    TritonMQError,
    UnknownPartition,
    UnknownTopic,
)
from mq_client.cluster.lines import FetchCall
from mq_dev.local_cluster import LocalCluster
from mq_protocol import mq_pb2 as pb
from mq_protocol.partitioner import partition_for_key
from mq_protocol.wire.ipc_message import codec_of
from tests import switch
from tests.cluster.harness import wait_until


def values(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
    with Reader(bootstrap) as reader:
        return [value for batch in reader.read(topic, partition) for value in batch.column("value").to_pylist()]


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"retries": -1},
        {"max_in_flight": -1},
        {"max_in_flight": 0},
        {"acks": "al"},
        {"timeout_ms": 0},
        {"linger_ms": -1},
        {"batch_bytes_max": 0},
        {"batch_bytes_max": 1 << 30},
        {"compression": "brotli"},
        {"partitioner": "modulo"},
        {"buffer_bytes_max": 1},
        {"bootstrap": "nowhere"},
    ],
)
def test_a_setting_that_makes_no_sense_is_named_at_construction(wrong: dict[str, object]) -> None:
    name = next(iter(wrong))
    with pytest.raises(InvalidSetting, match=name):
        Producer(**{"bootstrap": "127.0.0.1:1", **wrong})  # type: ignore[arg-type]


# ---------------------------------------------------------------- records


def test_a_record_is_where_its_future_says(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    with Producer(bootstrap) as producer:
        future = producer.publish(topic, "hello", key="k", headers={"h": b"1"}, timestamp=7)
        placed = future.result(30)
    assert placed.partition == partition_for_key(b"k", 3)
    assert (placed.topic, placed.offset, placed.duplicate) == (topic, 0, False)
    with Reader(bootstrap) as reader:
        [batch] = reader.read(topic, placed.partition)
    [row] = batch.cast(batch.schema.set(3, pa.field("timestamp", pa.int64()))).to_pylist()
    assert row == {"key": b"k", "value": b"hello", "headers": [{"key": "h", "value": b"1"}], "timestamp": 7}


@pytest.mark.parametrize("acks", ["all", "leader", "none"])
def test_records_of_a_partition_keep_their_order(bootstrap: str, admin: Admin, topic: str, acks: str) -> None:
    admin.create_topic(topic)
    sent = [b"%d" % number for number in range(5_000)]
    with Producer(bootstrap, acks=acks, linger_ms=0, batch_bytes_max=2_000, max_in_flight=7) as producer:
        for value in sent:
            producer.publish(topic, value)
    # With less than "all", an answer comes before a record can be read
    wait_until(lambda: admin.offsets(topic)[0][1] == len(sent), "the commit")
    assert values(bootstrap, topic) == sent


def test_with_acks_leader_a_record_is_where_its_future_says(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    began_us = time.time_ns() // 1000
    with Producer(bootstrap, acks="leader", linger_ms=0, batch_bytes_max=500) as producer:
        producer.publish(topic, b"0").result(30)
        places = [future.result(30) for future in [producer.publish(topic, b"%d" % n) for n in range(1, 500)]]
        table = producer.publish_batch(topic, pa.table({"value": [b"500", b"501"]})).result(30)
    assert [place.offset for place in places] == list(range(1, 500))
    assert table.base_offset == 500
    assert all(began_us <= place.timestamp <= time.time_ns() // 1000 for place in places)
    wait_until(lambda: admin.offsets(topic)[0][1] == 502, "the commit")
    assert values(bootstrap, topic) == [b"%d" % n for n in range(502)]


def test_many_threads_may_publish(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap) as producer, ThreadPoolExecutor(4) as threads:
        list(
            threads.map(lambda thread: [producer.publish(topic, b"%d %d" % (thread, n)) for n in range(500)], range(4))
        )
        producer.flush()
    found = [value.split() for value in values(bootstrap, topic)]
    for thread in range(4):
        assert [int(n) for t, n in found if int(t) == thread] == list(range(500))


@pytest.mark.parametrize(
    ("compression", "stored"),
    [
        (None, None),
        ("none", None),
        ("lz4", "lz4"),
        ("zstd", "zstd"),
        ("gzip", "zstd"),
        ("zlib", "zstd"),
        ("snappy", "lz4"),
    ],
)
def test_batches_are_stored_by_the_codec_that_the_name_stands_for_and_read_back(
    bootstrap: str, admin: Admin, topic: str, compression: str | None, stored: str | None
) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap, compression=compression, linger_ms=60_000) as producer:
        for _ in range(100):
            producer.publish(topic, b"x" * 1_000)
    assert values(bootstrap, topic) == [b"x" * 1_000] * 100
    request = pb.FetchRequest(topic=topic, partition=0, start_offset=0, end_offset=100, chunk_bytes_max=1)
    for chunk in FetchCall(bootstrap, request, 10, switch.client()):
        assert codec_of(chunk.payload) == stored


def test_a_uuid_makes_one_copy_whoever_sends_it(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=5)
    once = uuid.uuid4()
    placed = []
    for given in (once, once.bytes, str(once)):
        with Producer(bootstrap) as producer:
            placed.append(producer.publish(topic, b"x", uuid=given).result(30))
    assert [place.duplicate for place in placed] == [False, True, True]
    assert len({(place.partition, place.offset) for place in placed}) == 1
    with Producer(bootstrap) as producer:
        for wrong in ("x", b"short", 7, bytes(16)):
            with pytest.raises(InvalidRequest, match="uuid"):
                producer.publish(topic, b"x", uuid=wrong)  # type: ignore[arg-type]


def test_records_with_uuids_share_batches_and_are_found_whatever_they_come_with(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic)
    names = [uuid.uuid4() for _ in range(1_000)]
    with Producer(bootstrap, linger_ms=60_000, compression="zstd") as producer:
        first = [producer.publish(topic, b"%d" % n, uuid=name) for n, name in enumerate(names[:600])]
        producer.flush()
    assert [place.result().offset for place in first] == list(range(600))
    with Reader(bootstrap) as reader:
        assert sum(1 for _ in reader.read(topic, 0)) < 10

    # As after a crash: other batches, of some that are there and some that are not.
    with Producer(bootstrap, linger_ms=20, batch_bytes_max=2_000) as producer:
        again = [producer.publish(topic, b"%d" % n, uuid=name) for n, name in enumerate(names) if n % 3 or n > 700]
        twice = producer.publish(topic, b"999", uuid=names[999])
        producer.flush()
    found = [place.result() for place in again]
    assert [place.offset for place in found if place.duplicate] == [n for n in range(600) if n % 3]
    assert [place.offset for place in found if not place.duplicate] == list(range(600, 600 + len(found) - 400))
    assert twice.result() == found[-1]._replace(duplicate=True)
    missing = {b"%d" % n for n in range(600, 701) if not n % 3}
    assert values(bootstrap, topic) == [value for value in (b"%d" % n for n in range(1_000)) if value not in missing]


def test_rows_go_to_a_topic_with_a_schema(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, schema="a long NOT NULL, b string")
    with Producer(bootstrap) as producer:
        producer.publish(topic, {"a": 1, "b": "x"})
        assert producer.publish(topic, {"a": 2}, key="k", uuid=uuid.uuid4()).result(30).offset == 1
        with pytest.raises(SchemaMismatch, match="'b' of topic"):
            producer.publish(topic, {"a": 1, "b": 5})
        for wrong in (b"bytes", None):
            with pytest.raises(InvalidRequest, match="a dict of its columns"):
                producer.publish(topic, wrong)
        with pytest.raises(InvalidRequest, match="headers"):
            producer.publish(topic, {"a": 1}, headers={"h": b""})
    with Reader(bootstrap) as reader:
        assert [row for batch in reader.read(topic, 0) for row in batch.to_pylist()] == [
            {"a": 1, "b": "x"},
            {"a": 2, "b": None},
        ]


def test_what_can_be_refused_at_once_is(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2, record_bytes_max=1_000)
    with Producer(bootstrap) as producer:
        with pytest.raises(BatchTooLarge, match="record_bytes_max=1000"):
            producer.publish(topic, b"x" * 1_001)
        with pytest.raises(BatchTooLarge):
            producer.publish(topic, b"x" * 500, key=b"k" * 501)
        with pytest.raises(UnknownPartition, match="it has 0 to 1"):
            producer.publish(topic, b"x", partition=2)
        with pytest.raises(UnknownTopic, match="did you mean"):
            producer.publish(topic[:-1], b"x")
        with pytest.raises(InvalidTopicName):
            producer.publish("__transactions", b"x")
        with pytest.raises(InvalidRequest, match="value is int"):
            producer.publish(topic, 5)  # type: ignore[arg-type]
        assert producer.publish(topic, b"x" * 1_000, partition=1).result(30).offset == 0


def test_the_largest_record_fits_its_batch(bootstrap: str, admin: Admin, topic: str) -> None:
    made = admin.create_topic(topic, batch_bytes_max=65_536)
    most = 65_536 - 4_096
    assert made.settings == {"batch_bytes_max": "65536"}
    with Producer(bootstrap) as producer:
        assert producer.publish(topic, b"x" * most, uuid=uuid.uuid4()).result(30).offset == 0
        assert producer.publish(topic, b"x" * most).result(30).offset == 1
        with pytest.raises(BatchTooLarge):
            producer.publish(topic, b"x" * (most + 1))


# ---------------------------------------------------------------- tables


def test_a_table_is_spread_by_key_and_keeps_each_keys_order(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=3, schema="k string, n long")
    table = pa.table({"n": range(30_000), "k": [f"key-{n % 50}" for n in range(30_000)]})
    with Producer(bootstrap, batch_bytes_max=50_000) as producer:
        placed = producer.publish_batch(topic, table, key_column="k").result(30)
    assert placed.record_count == sum(place.record_count for place in placed.places) == 30_000
    assert len(placed.places) > 6
    with Reader(bootstrap) as reader:
        for partition in range(3):
            rows = [row for batch in reader.read(topic, partition) for row in batch.to_pylist()]
            assert [row["n"] for row in rows] == sorted(row["n"] for row in rows)
            assert {partition_for_key(row["k"].encode(), 3) for row in rows} <= {partition}


def test_a_table_sent_again_under_its_uuid_is_there_once(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=4, schema="n long")
    table, once = pa.table({"n": range(20_000)}), uuid.uuid4()
    placed = []
    for _ in range(2):
        with Producer(bootstrap, batch_bytes_max=40_000) as producer:
            placed.append(producer.publish_batch(topic, table, uuid=once).result(30))
    assert len(placed[0].places) > 2
    assert [place.duplicate for place in placed[1].places] == [True] * len(placed[1].places)
    assert [place[:3] for place in placed[0].places] == [place[:3] for place in placed[1].places]
    assert sum(end for _, end in admin.offsets(topic).values()) == 20_000


def test_a_table_that_does_not_fit_is_refused_before_anything_is_sent(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, schema="a long, b string", record_bytes_max=1_000)
    with Producer(bootstrap) as producer:
        with pytest.raises(SchemaMismatch, match="column 'a' is double"):
            producer.publish_batch(topic, pa.table({"a": [1.5], "b": ["x"]}))
        with pytest.raises(InvalidRequest, match=r"key_column='bb' is no column: did you mean 'b'"):
            producer.publish_batch(topic, pa.table({"a": [1], "b": ["x"]}), key_column="bb")
        assert (
            producer.publish_batch(topic, pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())}))
            .result(30)
            .places
            == ()
        )
    assert admin.offsets(topic) == {0: (0, 0)}


# ---------------------------------------------------------------- trouble


@pytest.mark.cluster
def test_a_full_buffer_is_told_to_who_publishes_while_the_brokers_are_paused(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("t")
        with Producer(
            cluster.bootstrap, publish_ms_max=1_000, batch_bytes_max=10_000, buffer_bytes_max=100_000
        ) as producer:
            producer.publish("t", b"before").result(30)
            cluster.brokers[1].send_if_running(signal.SIGSTOP)
            began, futures = time.monotonic(), []

            def publish_more_than_fits() -> None:
                for _ in range(1_000):
                    futures.append(producer.publish("t", b"x" * 100))  # noqa: PERF401 - those before the error count

            with pytest.raises(Overloaded, match="buffer_bytes_max=100000"):
                publish_more_than_fits()
            assert 700 <= len(futures) < 1_000
            assert time.monotonic() - began >= 0.9
            cluster.brokers[1].send_if_running(signal.SIGCONT)
            producer.publish("t", b"after").result(30)
            for future in futures:
                future.exception(30)


def test_a_closed_producer_says_so_and_closing_again_does_nothing(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    producer = Producer(bootstrap, linger_ms=60_000)
    future = producer.publish(topic, b"x")
    producer.close()
    producer.close()
    assert future.result(0).offset == 0
    with pytest.raises(InvalidRequest, match="closed"):
        producer.publish(topic, b"x")


def test_a_producer_whose_thread_failed_tells_everyone(
    bootstrap: str, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic(topic, partitions=1)
    monkeypatch.setattr(threading, "excepthook", lambda failure: None)
    producer = Producer(bootstrap, linger_ms=25_000)
    waiting = producer.publish(topic, b"in an open batch")
    monkeypatch.setattr(producer._sender, "_plan", lambda now: 1 / 0)
    producer._sender._wake()
    assert isinstance(waiting.exception(30), InternalError)
    with pytest.raises(InternalError, match="make a new producer"):
        producer.publish(topic, b"next")
    producer.close()


def test_a_topic_made_anew_is_met_anew(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, schema="a long")
    with Producer(bootstrap) as producer:
        producer.publish(topic, {"a": 1}).result(30)
        admin.delete_topic(topic)
        admin.create_topic(topic, schema="b string")
        with pytest.raises(TritonMQError):
            producer.publish(topic, {"a": 1}).result(30)
        assert producer.publish(topic, {"b": "x"}).result(30).offset == 0


def test_an_error_that_nobody_looks_at_is_raised_by_flush_once(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    producer = Producer(bootstrap)
    producer.publish(topic, b"x").result(30)
    admin.delete_topic(topic)
    ignored = producer.publish(topic, b"x")
    with pytest.raises(UnknownTopic):
        producer.flush()
    producer.flush()
    assert isinstance(ignored.exception(0), UnknownTopic)
    producer.close()


@pytest.mark.cluster
def test_a_broker_that_dies_and_comes_back_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, Producer(cluster.bootstrap, linger_ms=0) as producer:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("t")
        futures = [producer.publish("t", b"%d" % number) for number in range(2_000)]
        futures[100].result(30)
        cluster.kill(1)
        futures += [producer.publish("t", b"%d" % number) for number in range(2_000, 3_000)]
        cluster.restart(1)
        producer.flush()
        assert [future.result(0).offset for future in futures] == list(range(3_000))
        assert values(cluster.bootstrap, "t") == [b"%d" % number for number in range(3_000)]


def deliver_within(producer: Producer, seconds: float) -> None:
    """As `timeout_ms` says, for what is published from now on."""
    accumulator = producer._accumulator
    accumulator.settings = accumulator.settings._replace(delivery_s=seconds)


@pytest.mark.cluster
def test_what_has_no_answer_in_time_is_unknown_and_what_never_left_is_not_sent(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("t")
        producer = Producer(cluster.bootstrap, publish_ms_max=100, linger_ms=0, buffer_bytes_max=1 << 20)
        producer.publish("t", b"before").result(30)
        deliver_within(producer, 2)  # each is tried to the end of it, so no longer than it must be
        cluster.brokers[1].send_if_running(signal.SIGSTOP)
        once = uuid.uuid4()

        def unknown() -> OutcomeUnknown | None:
            """Perhaps its time is over before it has left: then it is not sent."""
            error = producer.publish("t", b"x", uuid=once).exception(30)
            return error if isinstance(error, OutcomeUnknown) else None

        assert not wait_until(unknown, "it has left").definite
        cluster.brokers[1].send_if_running(signal.SIGCONT)
        with Producer(cluster.bootstrap) as another:
            another.publish("t", b"x", uuid=once).result(30)
        assert values(cluster.bootstrap, "t") == [b"before", b"x"]

        cluster.kill(1)
        deliver_within(producer, 0.5)

        def not_sent() -> NotSent | None:
            """Perhaps it is written to a stream that has not noticed yet: then it is unknown."""
            error = producer.publish("t", b"y").exception(30)
            return error if isinstance(error, NotSent) else None

        assert wait_until(not_sent, "the stream has ended").definite
        deliver_within(producer, 2)  # until then none of them makes room
        full = pa.table({"value": [b"z" * 100_000] * 30})
        with pytest.raises(Overloaded, match="buffer_bytes_max"):
            producer.publish_batch("t", full)
        with pytest.raises(TritonMQError):
            producer.close(timeout_ms=2_500)
        cluster.restart(1)
        assert values(cluster.bootstrap, "t") == [b"before", b"x"]
