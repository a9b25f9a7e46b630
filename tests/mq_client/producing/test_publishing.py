"""What `publish` and `publish_batch` put into batches, and for which partition. Nothing is sent: the test looks at what
waits."""

from __future__ import annotations

import gc
import time
import uuid as uuids
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from mq_client import producer as producer_module
from mq_client.cluster import connection as connection_module
from mq_client.cluster import requests
from mq_client.errors import (
    BatchTooLarge,
    InvalidRequest,
    InvalidSetting,
    InvalidTopicName,
    Overloaded,
    SchemaMismatch,
    TritonMQError,
    UnknownPartition,
)
from mq_client.producer import Producer
from mq_client.producing.accumulator import Answer
from mq_client.producing.batches import RECORD_OVERHEAD_BYTES
from mq_client.producing.futures import BatchOutcome, BatchPlace
from mq_client.producing.sender import Sender
from mq_client.producing.uuids import piece_uuid
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch
from mq_protocol.partitioner import partition_for_key
from mq_protocol.sql.ddl import parse_schema
from tests.mq_client.cluster.scripted import Clock, Scripted, told, topic_info
from tests.mq_client.wakes import Wakes

OWN = uuids.UUID(int=5)


@dataclass
class Waiting:
    """A batch that nobody sends."""

    partition: int
    rows: list[dict[str, Any]]
    uuid: bytes
    record_uuids: bytes


class Publishing:
    """Owns producers that have no thread. Brokers know the topics last said."""

    def __init__(self, scripted: Scripted) -> None:
        self.scripted = scripted
        self.made: list[Producer] = []

    def say(self, *topics: pb.TopicInfo) -> None:
        self.scripted.clock.now += 1
        self.scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(*topics))

    def producer(self, **options: Any) -> Producer:
        made = Producer("b:1", **options)
        self.made.append(made)
        return made

    def waiting(self, producer: Producer) -> list[Waiting]:
        """By partition, in the order of each."""
        producer._accumulator.close_all(0.0)
        found = []
        for lane in sorted(producer._accumulator.busy(), key=lambda lane: lane.partition):
            for batch in lane.batches:
                assert batch.schema is not None
                rows = decode_batch(batch.encoded(), batch.schema).to_pylist()
                assert len(rows) == batch.record_count
                found.append(Waiting(batch.partition, rows, batch.uuid, batch.record_uuids))
        return found


@pytest.fixture
def publishing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publishing]:
    clock = Clock()
    monkeypatch.setattr(connection_module, "time", clock)
    scripted = Scripted(clock)
    monkeypatch.setattr(requests, "_ADDED_WITHIN_MS", 20.0)
    monkeypatch.setattr(producer_module, "Connection", lambda bootstrap, **_: scripted)
    monkeypatch.setattr(Sender, "ensure_started", lambda sender: None)
    made = Publishing(scripted)
    made.say(topic_info(1, 1, 1))
    yield made
    for producer in made.made:
        producer._closed = True  # nobody answers: there is nothing to wait for at the end of the process


def values(waiting: list[Waiting]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for batch in waiting:
        found.setdefault(batch.partition, []).extend(row["value"] for row in batch.rows)
    return found


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"acks": "some"}, "acks='some' is not known"),
        ({"compression": "brotli"}, "compression='brotli' is not known"),
        ({"retries": -1}, "retries=-1 is negative"),
        ({"max_in_flight": 0}, "max_in_flight=0 must be at least 1"),
        ({"linger_ms": -0.1}, "linger_ms=-0.1 is negative"),
        ({"linger_ms": "5s"}, "linger_ms=5000"),
        ({"batch_bytes_max": 0}, "batch_bytes_max=0 is out of range"),
        ({"batch_bytes_max": limits.BATCH_BYTES_CEILING + 1, "buffer_bytes_max": 1 << 40}, "is out of range"),
        ({"buffer_bytes_max": (1 << 20) - 1}, "is below batch_bytes_max"),
        ({"timeout_ms": 0}, "timeout_ms=0"),
        ({"publish_ms_max": 0}, "publish_ms_max=0"),
        ({"metadata_age_ms_max": 0}, "metadata_age_ms_max=0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_and_named(
    publishing: Publishing, wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidSetting, match=says):
        publishing.producer(**wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"retries": 0, "max_in_flight": 1, "linger_ms": 0},
        {"batch_bytes_max": 1, "buffer_bytes_max": 1},
        {"batch_bytes_max": limits.BATCH_BYTES_CEILING, "buffer_bytes_max": limits.BATCH_BYTES_CEILING},
    ],
)
def test_a_setting_at_its_edge_is_taken(publishing: Publishing, right: dict[str, Any]) -> None:
    publishing.producer(**right)


def test_settings_reach_the_batches_in_seconds(publishing: Publishing) -> None:
    producer = publishing.producer(timeout_ms=4_000, linger_ms=50, retries=3, max_in_flight=2, compression="gzip")
    assert producer._accumulator.settings == (1 << 20, 0.05, 4.0, 3, 2, "zstd", True)
    assert producer._publish_ms_max == 2_000
    assert producer._metadata_age_s_max == 30.0
    assert not publishing.producer(partitioner="sticky")._accumulator.settings.takes_turns
    assert publishing.producer(publish_ms_max=70)._publish_ms_max == 70


# ---------------------------------------------------------------- records


def test_a_record_goes_to_the_partition_named_or_to_that_of_its_key(publishing: Publishing) -> None:
    producer = publishing.producer()
    for _ in range(2):  # the second time by the quick way
        producer.publish("t", b"named", partition=2)
        producer.publish("t", b"keyed", key=b"k")
        producer.publish("t", b"both", key=b"k", partition=1)
    keyed = partition_for_key(b"k", 3)
    expected: dict[int, list[bytes]] = {}
    for partition, value in [(2, b"named"), (keyed, b"keyed"), (1, b"both")] * 2:
        expected.setdefault(partition, []).append(value)
    assert values(publishing.waiting(producer)) == expected


def test_what_a_record_has_is_stored_with_it(publishing: Publishing) -> None:
    producer = publishing.producer()
    producer.publish("t", "text", key="k", headers={"h": b"1"}, timestamp=7, partition=0)
    producer.publish("t", None, key=bytearray(b"k"), timestamp=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), partition=0)
    [batch] = publishing.waiting(producer)
    first, second = batch.rows
    assert (first["key"], first["value"], first["headers"]) == (b"k", b"text", [{"key": "h", "value": b"1"}])
    assert first["timestamp"] == datetime(1970, 1, 1, 0, 0, 0, 7, tzinfo=UTC)
    assert (second["key"], second["value"], second["headers"]) == (b"k", None, None)
    assert second["timestamp"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_a_record_without_a_time_has_that_of_its_publishing(publishing: Publishing) -> None:
    producer = publishing.producer()
    before = time.time()
    producer.publish("t", b"first", partition=0)
    producer.publish("t", b"quick", partition=0)
    [batch] = publishing.waiting(producer)
    assert all(before - 1 < row["timestamp"].timestamp() < time.time() + 1 for row in batch.rows)


def test_a_record_may_be_just_as_large_as_the_topic_allows(publishing: Publishing) -> None:
    info = topic_info(1)
    info.settings["record_bytes_max"] = "1024"
    publishing.say(info)
    producer = publishing.producer()
    for _ in range(2):
        producer.publish("t", b"v" * 1_000, key=b"k" * 24)
        with pytest.raises(BatchTooLarge, match=r"record of 1025 bytes is above 't'.*record_bytes_max=1024"):
            producer.publish("t", b"v" * 1_001, key=b"k" * 24)


@pytest.mark.parametrize("name", ["a/b", "__transactions"])
def test_a_topic_that_cannot_be_the_users_takes_nothing(publishing: Publishing, name: str) -> None:
    publishing.say(topic_info(1, name="__transactions"))
    producer = publishing.producer()
    with pytest.raises(InvalidTopicName):
        producer.publish(name, b"x")
    with pytest.raises(InvalidTopicName):
        producer.publish_batch(name, table(1))
    assert publishing.scripted.asked == []


@pytest.mark.parametrize("partition", [3, -1])
def test_a_partition_that_is_not_there_is_refused_whichever_way_a_record_takes(
    publishing: Publishing, partition: int
) -> None:
    producer = publishing.producer(timeout_ms=50)
    for _ in range(2):
        with pytest.raises(UnknownPartition):
            producer.publish("t", b"x", partition=partition)
        producer.publish("t", b"x", partition=2)
    with pytest.raises(UnknownPartition):
        producer.publish_batch("t", pa.table({"value": [b"x"]}), partition=partition)


def test_a_partition_that_was_added_is_found_when_it_is_named(publishing: Publishing) -> None:
    producer = publishing.producer()
    producer.publish("t", b"before", partition=2)
    publishing.say(topic_info(1, 1, 1, 1))
    producer.publish("t", b"behind", partition=3)
    assert values(publishing.waiting(producer)) == {2: [b"before"], 3: [b"behind"]}


def test_serializers_are_asked_for_what_is_there(publishing: Publishing) -> None:
    producer = publishing.producer(key_serializer="string", value_serializer="json")
    for _ in range(2):
        producer.publish("t", {"a": 1}, key="k", partition=0)
        producer.publish("t", None, partition=0)
    [batch] = publishing.waiting(producer)
    assert [(row["key"], row["value"]) for row in batch.rows] == [(b"k", b'{"a":1}'), (None, None)] * 2


def test_a_callable_partitioner_is_asked_unless_a_partition_is_named(publishing: Publishing) -> None:
    producer = publishing.producer(partitioner=lambda topic, key, count: count - 1)
    for _ in range(2):
        producer.publish("t", b"x", key=b"k")
        producer.publish("t", b"y", partition=0)
    assert values(publishing.waiting(producer)) == {0: [b"y", b"y"], 2: [b"x", b"x"]}


def test_sticky_records_look_at_no_key(publishing: Publishing) -> None:
    producer = publishing.producer(partitioner="sticky")
    for number in range(100):
        producer.publish("t", b"x", key=b"%d" % number)
    assert len(values(publishing.waiting(producer))) == 1


# ---------------------------------------------------------------- UUIDs


def test_a_uuid_decides_the_partition_where_nothing_else_does(publishing: Publishing) -> None:
    producer = publishing.producer()
    producer.publish("t", b"by uuid", uuid=OWN)
    producer.publish("t", b"by key", uuid=OWN.bytes, key=b"k")
    producer.publish("t", b"named", uuid=str(OWN), partition=0)
    found = publishing.waiting(producer)
    assert all(batch.uuid == OWN.bytes or len(batch.rows) > 1 for batch in found)
    where = {value: partition for partition, each in values(found).items() for value in each}
    assert where == {b"by uuid": zlib.crc32(OWN.bytes) % 3, b"by key": partition_for_key(b"k", 3), b"named": 0}
    random_ = publishing.producer(partitioner="random")
    random_.publish("t", b"x", uuid=OWN, key=b"k")
    assert list(values(publishing.waiting(random_))) == [zlib.crc32(OWN.bytes) % 3]


@pytest.mark.parametrize("wrong", ["x", b"short", bytes(16), 5])
def test_what_is_no_uuid_is_refused(publishing: Publishing, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="uuid"):
        publishing.producer().publish("t", b"x", uuid=wrong)


# ---------------------------------------------------------------- memory


def test_publish_waits_for_room_and_says_when_there_is_none(publishing: Publishing) -> None:
    size = 100 + RECORD_OVERHEAD_BYTES
    producer = publishing.producer(batch_bytes_max=2 * size, buffer_bytes_max=2 * size, publish_ms_max=1)
    for _ in range(2):
        producer.publish("t", b"x" * 100, partition=0)
    with pytest.raises(Overloaded, match="for 1 ms"):
        producer.publish("t", b"", partition=0)
    assert producer._accumulator.pending_bytes == 2 * size


def test_tables_and_rows_wait_for_room_as_well(publishing: Publishing) -> None:
    producer = publishing.producer(batch_bytes_max=300, buffer_bytes_max=300, publish_ms_max=1)
    producer.publish("t", b"x" * (300 - RECORD_OVERHEAD_BYTES), partition=0)
    with pytest.raises(Overloaded, match="for 1 ms"):
        producer.publish_batch("t", table(1), partition=0)
    publishing.say(topic_info(1, name="typed", schema=parse_schema(WORDS)))
    with pytest.raises(Overloaded, match="for 1 ms"):
        producer.publish("typed", {"n": 1})
    assert producer._accumulator.pending_bytes == 300


def test_the_sender_is_woken_for_a_record_a_row_and_a_table(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing.say(topic_info(1, 1, 1), topic_info(1, name="typed", schema=parse_schema(WORDS)))
    producer = publishing.producer()
    wakes = Wakes(producer._sender.work, monkeypatch)
    assert wakes.by(lambda: producer.publish("t", b"x", partition=0))
    assert not wakes.by(lambda: producer.publish("t", b"x", partition=0))  # its batch was told of already
    assert wakes.by(lambda: producer.publish("typed", {"n": 1}))
    assert not wakes.by(lambda: producer.publish("typed", {"n": 1}))
    assert wakes.by(lambda: producer.publish_batch("t", table(1)))


def test_a_closed_producer_publishes_nothing(publishing: Publishing) -> None:
    producer = publishing.producer()
    producer.close()
    for publish in (
        lambda: producer.publish("t", b"x"),
        lambda: producer.publish_batch("t", pa.table({"value": [b"x"]})),
    ):
        refused: Callable[[], object] = publish
        with pytest.raises(InvalidRequest, match="producer is closed"):
            refused()


# ---------------------------------------------------------------- topics with a schema


WORDS = "n long NOT NULL, s string"


def typed(publishing: Publishing, words: str = WORDS, *leaders: int, **more: Any) -> None:
    publishing.say(topic_info(*(leaders or (1, 1, 1)), schema=parse_schema(words), **more))


def test_rows_go_where_their_key_or_partition_says(publishing: Publishing) -> None:
    typed(publishing)
    producer = publishing.producer()
    producer.publish("t", {"n": 1}, key=b"k")
    producer.publish("t", {"s": "x", "n": 2}, partition=0, uuid=OWN)
    found = {(batch.partition, tuple(row["n"] for row in batch.rows)) for batch in publishing.waiting(producer)}
    assert found == {(partition_for_key(b"k", 3), (1,)), (0, (2,))}


def test_a_row_is_refused_with_what_a_row_has_no_place_for(publishing: Publishing) -> None:
    typed(publishing)
    producer = publishing.producer()
    for given in ({"headers": {}}, {"timestamp": 5}):
        with pytest.raises(InvalidRequest, match="no place for headers or timestamp"):
            producer.publish("t", {"n": 1}, **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"give a dict of its columns \(n, s\)"):
        producer.publish("t", b"bytes")


def test_a_row_may_be_just_as_large_as_the_topic_allows(publishing: Publishing) -> None:
    info = topic_info(1, schema=parse_schema("s string"))
    info.settings["record_bytes_max"] = "1024"
    publishing.say(info)
    producer = publishing.producer()
    producer.publish("t", {"s": "x" * (1024 - 12)})
    with pytest.raises(BatchTooLarge, match="row of 1025 bytes"):
        producer.publish("t", {"s": "x" * (1025 - 12)})


def test_a_column_that_was_added_is_found_when_a_row_has_it(publishing: Publishing) -> None:
    typed(publishing)
    producer = publishing.producer()
    producer.publish("t", {"n": 1}, partition=0)
    typed(publishing, WORDS + ", b long")
    producer.publish("t", {"n": 2, "b": 3}, partition=0)
    producer.publish("t", {"n": 4}, partition=0)
    first, second = publishing.waiting(producer)
    assert first.rows == [{"n": 1, "s": None}]
    assert second.rows == [{"n": 2, "s": None, "b": 3}, {"n": 4, "s": None, "b": None}]
    with pytest.raises(SchemaMismatch, match="no column 'c'"):
        producer.publish("t", {"n": 1, "c": 1}, partition=0)


def test_a_topic_made_anew_without_a_schema_takes_no_row(publishing: Publishing) -> None:
    typed(publishing)
    producer = publishing.producer()
    producer.publish("t", {"n": 1})
    publishing.say(topic_info(1, 1, 1, topic_id="anew"))
    with pytest.raises(TritonMQError):
        producer.publish("t", {"n": 1, "b": 2})


# ---------------------------------------------------------------- tables


def table(count: int, size: int = 1) -> pa.Table:
    return pa.table({"value": [b"%04d" % number + b"x" * size for number in range(count)]})


def test_a_table_without_keys_goes_to_the_partitions_in_turn_piece_by_piece(publishing: Publishing) -> None:
    producer = publishing.producer(batch_bytes_max=4_096)
    future = producer.publish_batch("t", table(30, 1_000))
    found = publishing.waiting(producer)
    assert len(found) > 6
    assert {batch.partition for batch in found} == {0, 1, 2}
    assert (
        sorted(value for each in values(found).values() for value in each)
        == table(30, 1_000).column("value").to_pylist()
    )
    assert not future.done()


def test_a_table_goes_to_the_partition_named(publishing: Publishing) -> None:
    producer = publishing.producer()
    producer.publish_batch("t", pa.table({"key": [b"a", b"b"], "value": [b"1", b"2"]}), partition=1)
    assert values(publishing.waiting(producer)) == {1: [b"1", b"2"]}


def test_rows_of_a_table_go_by_their_keys_and_those_without_in_turn(publishing: Publishing) -> None:
    producer = publishing.producer()
    keys = [b"a", None, b"b", b"a"]
    producer.publish_batch("t", pa.table({"key": pa.array(keys, pa.binary()), "value": [b"1", b"2", b"3", b"4"]}))
    where = {value: partition for partition, each in values(publishing.waiting(producer)).items() for value in each}
    assert where[b"1"] == where[b"4"] == partition_for_key(b"a", 3)
    assert where[b"3"] == partition_for_key(b"b", 3)
    random_ = publishing.producer(partitioner=lambda topic, key, count: 2 if key == b"a" else 0)
    random_.publish_batch("t", pa.table({"key": pa.array(keys, pa.binary()), "value": [b"1", b"2", b"3", b"4"]}))
    assert values(publishing.waiting(random_)) == {0: [b"2", b"3"], 2: [b"1", b"4"]}


def test_a_producer_that_goes_by_no_key_sends_a_table_whole(publishing: Publishing) -> None:
    producer = publishing.producer(partitioner="sticky")
    producer.publish_batch("t", pa.table({"key": [b"a", b"b", b"c"], "value": [b"1", b"2", b"3"]}))
    [batch] = publishing.waiting(producer)
    assert len(batch.rows) == 3


def test_a_column_that_is_named_as_the_key_decides_and_must_be_there(publishing: Publishing) -> None:
    typed(publishing)
    producer = publishing.producer()
    given = pa.table({"n": [1, 2, 3], "s": ["a", "b", "a"]})
    producer.publish_batch("t", given, key_column="s")
    where = {row["n"]: batch.partition for batch in publishing.waiting(producer) for row in batch.rows}
    assert where == {1: partition_for_key(b"a", 3), 2: partition_for_key(b"b", 3), 3: partition_for_key(b"a", 3)}
    with pytest.raises(InvalidRequest, match=r"key_column='ss' is no column.*did you mean 's'"):
        producer.publish_batch("t", given, key_column="ss")


def test_a_table_with_a_column_that_was_just_added_is_taken(publishing: Publishing) -> None:
    typed(publishing)
    producer = publishing.producer()
    producer.publish("t", {"n": 1}, partition=0)
    typed(publishing, WORDS + ", b long")
    producer.publish_batch("t", pa.table({"n": [2], "s": ["x"], "b": [3]}), partition=0)
    assert publishing.waiting(producer)[1].rows == [{"n": 2, "s": "x", "b": 3}]


def test_a_record_of_a_table_may_be_just_as_large_as_the_topic_allows(publishing: Publishing) -> None:
    info = topic_info(1)
    info.settings["record_bytes_max"] = "1024"
    publishing.say(info)
    producer = publishing.producer()
    producer.publish_batch("t", pa.table({"value": [b"x" * 1_024]}))
    with pytest.raises(BatchTooLarge, match="record of 1025 bytes"):
        producer.publish_batch("t", pa.table({"value": [b"x" * 1_025]}))


def test_a_table_of_one_piece_has_its_uuid_and_several_have_one_each_that_depends_on_the_split(
    publishing: Publishing,
) -> None:
    producer = publishing.producer(batch_bytes_max=4_096)
    producer.publish_batch("t", table(1), uuid=OWN)
    [whole] = publishing.waiting(producer)
    assert (whole.uuid, whole.partition) == (OWN.bytes, zlib.crc32(OWN.bytes) % 3)
    again, once_more = publishing.producer(batch_bytes_max=4_096), publishing.producer(batch_bytes_max=4_096)
    for each in (again, once_more):
        each.publish_batch("t", table(30, 1_000), uuid=OWN)
    pieces = [(batch.partition, batch.uuid) for batch in publishing.waiting(again)]
    assert pieces == [(batch.partition, batch.uuid) for batch in publishing.waiting(once_more)]
    assert len({uuid for _, uuid in pieces}) == len(pieces) > 6
    assert {partition for partition, _ in pieces} == {zlib.crc32(OWN.bytes) % 3}
    assert len({piece_uuid(OWN.bytes, *split) for split in ((0, 2, 5), (1, 2, 5), (0, 3, 5), (0, 2, 6))}) == 4


# ---------------------------------------------------------------- the end


def test_errors_that_nobody_looked_at_are_raised_once_the_first_one_first(publishing: Publishing) -> None:
    producer = publishing.producer()
    seen, unseen = BatchOutcome("t"), BatchOutcome("t")
    seen.observed = True
    producer._sender.failures += [
        Answer(seen, None, InvalidRequest("seen")),
        Answer(unseen, None, InvalidRequest("first")),
        Answer(unseen, None, InvalidRequest("second")),
        Answer(unseen, BatchPlace(0, 0, 1, 0, False), None),
    ]
    with pytest.raises(InvalidRequest, match="first"):
        producer.flush()
    producer.flush()


def test_a_block_raises_what_closing_raises_unless_it_has_an_error_of_its_own(publishing: Publishing) -> None:
    def use(fails: bool) -> None:
        with publishing.producer() as producer:
            producer._sender.failures.append(Answer(BatchOutcome("t"), None, InvalidRequest("lost")))
            if fails:
                raise ZeroDivisionError

    with pytest.raises(InvalidRequest, match="lost"):
        use(False)
    with pytest.raises(ZeroDivisionError):
        use(True)


def test_what_waits_when_a_producer_is_closed_too_soon_is_given_up(publishing: Publishing) -> None:
    producer = publishing.producer()
    future = producer.publish("t", b"x")
    with pytest.raises(TritonMQError):
        producer.close(1)
    assert future.exception(0) is not None
    producer.close()


def test_rows_of_a_table_without_a_time_have_that_of_its_publishing(publishing: Publishing) -> None:
    producer = publishing.producer()
    producer.publish_batch("t", pa.table({"value": [b"x"]}))
    [batch] = publishing.waiting(producer)
    assert abs(batch.rows[0]["timestamp"].timestamp() - time.time()) < 60


def test_a_topic_that_changed_is_asked_for_again_and_what_was_open_is_closed(publishing: Publishing) -> None:
    producer = publishing.producer()
    producer.publish("t", b"before", partition=0)
    former = producer._targets["t"]
    with producer._lock:
        producer._forget("t")
        producer._forget("unknown")
    assert former.dropped
    assert former.open == [None] * 3
    assert [len(lane.batches) for lane in producer._accumulator.busy()] == [1]
    producer.publish("t", b"behind", partition=0)
    assert producer._targets["t"] is not former
    assert [row["value"] for batch in publishing.waiting(producer) for row in batch.rows] == [b"before", b"behind"]


def test_a_record_keeps_its_uuid_headers_and_time_where_others_took_the_quick_way(publishing: Publishing) -> None:
    producer = publishing.producer()
    for _ in range(2):
        producer.publish("t", b"plain", partition=0)
    producer.publish("t", b"own", partition=0, uuid=OWN)
    for _ in range(2):
        producer.publish("t", b"plain", partition=0)
    producer.publish("t", b"headers", partition=0, headers={"h": b"1"})
    producer.publish("t", b"time", partition=0, timestamp=7)
    found = publishing.waiting(producer)
    assert [[row["value"] for row in batch.rows] for batch in found] == [
        [b"plain", b"plain"],
        [b"own"],
        [b"plain", b"plain", b"headers", b"time"],
    ]
    assert found[1].uuid == OWN.bytes
    assert found[2].rows[2]["headers"] == [{"key": "h", "value": b"1"}]
    assert found[2].rows[3]["timestamp"] == datetime(1970, 1, 1, 0, 0, 0, 7, tzinfo=UTC)


def test_a_table_of_records_may_be_spread_by_another_column_than_its_keys(publishing: Publishing) -> None:
    producer = publishing.producer()
    producer.publish_batch("t", pa.table({"key": [b"same", b"same"], "value": [b"a", b"b"]}), key_column="value")
    where = {value: partition for partition, each in values(publishing.waiting(producer)).items() for value in each}
    assert where == {b"a": partition_for_key(b"a", 3), b"b": partition_for_key(b"b", 3)}


def test_a_process_that_ends_closes_the_producers_that_are_left(publishing: Publishing) -> None:
    producer = publishing.producer()
    producer_module._close_at_exit(weakref.ref(producer))
    assert producer._closed
    gone = weakref.ref(publishing.producer())
    publishing.made.pop()
    gc.collect()
    producer_module._close_at_exit(gone)
