"""The readers as Spark calls them, on a real broker and without Spark: what a stream's micro-batches come to, call by
call."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from mq_client import Admin, Producer
from mq_client.cluster.connection import Connection
from mq_protocol.errors import DataLoss, InvalidSetting
from mq_spark.datasource import cluster, subscribed
from mq_spark.datasource.readers import BatchReader
from mq_spark.datasource.reading import read_ranges
from mq_spark.datasource.securing import with_environment
from mq_spark.datasource.staging import MicroBatch, manifest_of, stage_rows
from mq_spark.datasource.writers import decide
from mq_spark.planning.options import parse_sink, parse_source
from tests.cluster.harness import wait_until
from tests.mq_spark.datasource.calls import NUMBERS, VALUE, Stream, numbers, publish, read, rows_of, values


def test_a_filter_and_a_projection_leave_the_offsets_that_rows_have(bootstrap: str, admin: Admin, name: str) -> None:
    admin.create_topic(name, schema="text string, n long")
    numbers(bootstrap, name, 10, batches=5)
    kept = [3, 17, 18, 49]
    found = read(bootstrap, NUMBERS, subscribe=name, filter="N in (3, 17, 18) or n > 48")
    assert found == [{"n": n, "_offset": n} for n in kept]
    everything = StructType().add("text", StringType()).add("n", LongType()).add("_offset", LongType())
    assert [
        row["_offset"] for row in read(bootstrap, everything, subscribe=name, filter="n in (3, 17, 18, 49)")
    ] == kept
    stream = Stream(
        bootstrap, NUMBERS, subscribe=name, filter="n >= 20", startingOffsets="earliest", maxOffsetsPerTrigger=12
    )
    assert [[row["n"] for row in rows] for rows in stream.available_now()] == [
        [20, 21, 22, 23],
        [*range(24, 36)],
        [*range(36, 48)],
        [48, 49],
    ]


def test_what_the_broker_leaves_out_is_not_sent(
    bootstrap: str, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic(name, schema="n long, text string")
    numbers(bootstrap, name, 1_000, batches=2)
    monkeypatch.setattr(cluster, "_clusters", {})
    everything = StructType().add("n", LongType()).add("text", StringType())
    narrow = StructType().add("n", LongType())

    def cost(wanted: StructType, **options: str) -> tuple[int, int]:
        """Rows, and the bytes of payload that came for them."""
        cluster._clusters.clear()
        rows = len(read(bootstrap, wanted, subscribe=name, **options))
        (only,) = cluster._clusters.values()
        return rows, only._reader.payload_bytes

    all_rows, whole = cost(everything)
    assert all_rows == 2_000
    assert whole > 200_000
    rows, pruned = cost(narrow)
    assert rows == 2_000
    assert pruned < whole / 10
    rows, filtered = cost(everything, filter="n >= 1990")
    assert rows == 10
    assert filtered < whole / 100
    rows, both = cost(narrow, filter="n >= 1990")
    assert rows == 10
    assert both < filtered


def test_limits_of_rows_and_bytes_hold_together_and_neither_holds_for_all_that_is_available(
    bootstrap: str, admin: Admin, name: str
) -> None:
    admin.create_topic(name, schema="n long, text string")
    numbers(bootstrap, name, 100)
    start = {"subscribe": name, "startingOffsets": json.dumps({name: {"0": 0}})}
    rows_only = Stream(bootstrap, NUMBERS, maxOffsetsPerTrigger=40, maxBytesPerTrigger="1g", **start)
    assert rows_only.reader.getDefaultReadLimit() == ReadMaxRows(40)
    assert [len(rows) for rows in rows_only.available_now()] == [40, 40, 20]
    by_bytes = Stream(bootstrap, NUMBERS, maxBytesPerTrigger="4k", **start)
    assert by_bytes.reader.getDefaultReadLimit() == ReadMaxBytes(4096)
    sizes = [len(rows) for rows in by_bytes.available_now()]
    assert sum(sizes) == 100
    assert 20 < sizes[0] < 40
    assert [len(rows) for rows in Stream(bootstrap, NUMBERS, maxBytesPerTrigger=1, **start).available_now()] == [
        1
    ] * 100
    both = Stream(bootstrap, NUMBERS, maxOffsetsPerTrigger=5, maxBytesPerTrigger="4k", **start)
    assert [len(rows) for rows in both.available_now()] == [5] * 20
    end = both.reader.latestOffset({name: {"0": 0}}, ReadAllAvailable())
    assert end[name] == {"0": 100}
    both.reader.stop()


def test_a_stream_begins_at_a_time_or_says_that_nothing_follows_it(bootstrap: str, admin: Admin, name: str) -> None:
    admin.create_topic(name, partitions=2)
    publish(bootstrap, name, "old 0")
    publish(bootstrap, name, "old 1", partition=1)
    times = StructType().add("timestamp", TimestampType())
    appended = max(row["timestamp"] for row in read(bootstrap, times, subscribe=name))
    while (now_ms := time.time_ns() // 1_000_000) <= appended.timestamp() * 1000 + 2:
        time.sleep(0.001)
    publish(bootstrap, name, "new 0")
    with pytest.raises(InvalidSetting, match=r"startingTimestamp finds nothing in topic .* partition 1"):
        Stream(bootstrap, VALUE, subscribe=name, startingTimestamp=now_ms)
    latest = {"startingTimestamp": now_ms, "startingOffsetsByTimestampStrategy": "latest"}
    stream = Stream(bootstrap, VALUE, subscribe=name, **latest)
    publish(bootstrap, name, "new 1", partition=1)
    assert values(stream.available_now()) == ["new 0", "new 1"]
    each = json.dumps({name: {"0": now_ms, "1": 0}})
    assert values([read(bootstrap, VALUE, subscribe=name, startingOffsetsByTimestamp=each)]) == [
        "new 0",
        "new 1",
        "old 1",
    ]
    assert values([read(bootstrap, VALUE, subscribe=name, endingTimestamp=now_ms)]) == ["old 0", "old 1"]


def test_a_pattern_is_looked_for_between_runs_and_while_one_goes_on(
    bootstrap: str, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribed, "SEARCH_SECONDS", 0.1)
    options = {"subscribePattern": f"{name}-.", "startingOffsets": "earliest"}
    stream = Stream(bootstrap, VALUE, **options)
    assert stream.at == {}
    assert stream.next() == []
    admin.create_topic(f"{name}-a")
    publish(bootstrap, f"{name}-a", "a")
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 20
    while not found:
        assert time.monotonic() < deadline, "the topic is not found"
        found = stream.next()
    assert values([found]) == ["a"]
    stream.reader.stop()
    for suffix in ("b", "c", "xx"):
        admin.create_topic(f"{name}-{suffix}", partitions=2)
        publish(bootstrap, f"{name}-{suffix}", suffix, partition=1)
    again = Stream(bootstrap, VALUE, stream.at, **options)
    assert values(again.available_now()) == ["b", "c"]
    admin.delete_topic(f"{name}-b")
    options["requestTimeoutMs"] = "1000"  # so long a broker that has not heard of it is given
    gone = Stream(bootstrap, VALUE, again.at, **options)
    with pytest.raises(DataLoss, match=r"offset 0 of topic .*-b partition 0 is wanted and that partition is gone"):
        gone.next()
    gone.reader.stop()
    allowed = Stream(bootstrap, VALUE, again.at, failOnDataLoss="false", **options)
    assert allowed.available_now() == []
    assert sorted(allowed.at) == ["/", f"{name}-a", f"{name}-c"]


def test_rows_that_retention_has_removed_are_a_loss_and_may_be_passed_over(
    bootstrap: str, admin: Admin, name: str
) -> None:
    admin.create_topic(name)
    options = {"subscribe": name, "startingOffsets": "earliest"}
    publish(bootstrap, name, "0")
    stream = Stream(bootstrap, VALUE, **options)
    assert values(stream.available_now()) == ["0"]
    publish(bootstrap, name, *"12345")
    admin.alter_topic(name, retention_bytes=1)
    wait_until(lambda: admin.offsets(name)[0][0] > 1, "retention")
    start, end = admin.offsets(name)[0]
    strict = Stream(bootstrap, VALUE, stream.at, **options)
    with pytest.raises(DataLoss, match=f"offset 1 of topic .* only {start} to 6 is kept: retention has removed"):
        strict.next()
    strict.reader.stop()
    allowed = Stream(bootstrap, VALUE, stream.at, failOnDataLoss="false", **options)
    assert values(allowed.available_now()) == [str(n) for n in range(start, end)]
    zero = json.dumps({name: {"0": 0}})
    with pytest.raises(InvalidSetting, match=f"startingOffsets has offset 0 for topic .*, which keeps {start} to 6"):
        read(bootstrap, VALUE, subscribe=name, startingOffsets=zero)
    found = read(bootstrap, VALUE, subscribe=name, startingOffsets=zero, failOnDataLoss="false")
    assert len(found) == end - start


def test_a_topic_that_was_made_again_is_read_from_its_first_record_or_ends_the_query(
    bootstrap: str, admin: Admin, name: str
) -> None:
    """Between two runs, and with as many rows as the former had: no offset tells the two apart."""
    options = {"subscribe": name, "startingOffsets": "earliest", "requestTimeoutMs": "2000"}
    admin.create_topic(name)
    publish(bootstrap, name, "a", "b")
    stream = Stream(bootstrap, VALUE, **options)
    assert values(stream.available_now()) == ["a", "b"]
    admin.delete_topic(name)
    admin.create_topic(name)
    publish(bootstrap, name, "c", "d", "e")
    told = ""
    while "was deleted and made again since it was read; to read the new one" not in told:
        # This process may plan by the former one, which it has read. Then the task that reads notices.
        strict = Stream(bootstrap, VALUE, stream.at, **options)
        with pytest.raises(DataLoss, match=f"topic {name} was deleted (and made again|while it was read)") as lost:
            strict.next()
        strict.reader.stop()
        told = str(lost.value)
    allowed = Stream(bootstrap, VALUE, stream.at, failOnDataLoss="false", **options)
    assert values(allowed.available_now()) == ["c", "d", "e"]
    planned = Stream(bootstrap, VALUE, stream.at, failOnDataLoss="false", **options)
    end = planned.reader.latestOffset(stream.at, ReadAllAvailable())
    assert [row for part in planned.reader.partitions(stream.at, end) for row in rows_of(planned, part)] == [
        b"c",
        b"d",
        b"e",
    ], "planned again, the micro-batch begins at the same place"
    publish(bootstrap, name, "f")
    assert values(Stream(bootstrap, VALUE, allowed.at, **options).available_now()) == ["f"]
    planned.reader.stop()


def test_a_topic_that_is_deleted_between_planning_and_reading_is_passed_over_or_ends_the_read(
    bootstrap: str, admin: Admin, name: str
) -> None:
    for fail in ("true", "false"):
        topic = f"{name}-{fail}"
        options = {"subscribe": topic, "failOnDataLoss": fail, "requestTimeoutMs": "2000"}
        admin.create_topic(topic)
        publish(bootstrap, topic, "a", "b")
        stream = Stream(bootstrap, VALUE, startingOffsets="earliest", **options)
        end = stream.reader.latestOffset(stream.at, ReadAllAvailable())
        planned = stream.reader.partitions(stream.at, end)
        given = {"bootstrap.servers": bootstrap, **options}
        batch = BatchReader(parse_source(with_environment(given), streaming=False), VALUE)
        batch_planned = batch.partitions()
        admin.delete_topic(topic)
        for reader, parts in ((stream.reader, planned), (batch, batch_planned)):
            work = [iter(reader.read(part)) for part in parts]
            if fail == "true":
                with pytest.raises(DataLoss, match=f"topic {topic} was deleted while it was read"):
                    next(work[0])
            else:
                assert [rows for each in work for rows in each] == []
        if fail == "false":
            admin.create_topic(topic)
            publish(bootstrap, topic, "c")
            stream.at = end
            found: list[str] = []
            deadline = time.monotonic() + 60
            while not found:
                assert time.monotonic() < deadline, "the topic that was made again is not read"
                found = values([stream.next()])
            assert found == ["c"]
        stream.reader.stop()


def test_a_new_query_reads_in_its_first_micro_batch_wherever_it_begins(bootstrap: str, admin: Admin, name: str) -> None:
    admin.create_topic(name)
    publish(bootstrap, name, "a", "b")
    first = Stream(bootstrap, VALUE, subscribe=name, startingOffsets="earliest")
    at = first.at
    assert values([first.next()]) == ["a", "b"]
    latest = Stream(bootstrap, VALUE, subscribe=name)
    begun = latest.at
    publish(bootstrap, name, "c")
    wait = time.monotonic() + 60
    while latest.at == begun:
        assert time.monotonic() < wait, "the record is not heard of"
        assert values([latest.next()]) in ([], ["c"])
    publish(bootstrap, name, "d")
    for stream, end, expected in ((first, first.at, [b"a", b"b"]), (latest, latest.at, [b"c"])):
        crashed = Stream(bootstrap, VALUE, subscribe=name, startingOffsets=json.dumps({name: {"0": 4}}))
        parts = crashed.reader.partitions(crashed.at, end)  # Spark asks anew where micro-batch 0 began
        assert [row for part in parts for row in rows_of(crashed, part)] == expected
        crashed.reader.stop()
        stream.reader.stop()
    assert at[name] == {"0": 0}


def test_partitions_that_are_added_and_those_that_are_assigned(
    bootstrap: str, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What this process was told before will not do
    monkeypatch.setitem(Connection.refresh.__kwdefaults__, "age_ms_max", 60_000.0)
    admin.create_topic(name)
    publish(bootstrap, name, "a")
    stream = Stream(bootstrap, VALUE, subscribe=name, startingOffsets="earliest")
    assert values(stream.available_now()) == ["a"]
    admin.alter_topic(name, partitions=3)
    publish(bootstrap, name, "b", partition=1)
    publish(bootstrap, name, "c", partition=2)
    again = Stream(bootstrap, VALUE, stream.at, subscribe=name)
    assert values(again.available_now()) == ["b", "c"]
    assigned = Stream(bootstrap, VALUE, assign=json.dumps({name: [2, 0]}), startingOffsets="earliest")
    assert values(assigned.available_now()) == ["a", "c"]
    assert assigned.at[name] == {"0": 1, "2": 1}
    with pytest.raises(InvalidSetting, match=f"assign names partition 3 of topic {name}, which has 0 to 2"):
        read(bootstrap, VALUE, assign=json.dumps({name: [3]}))


def test_a_filter_that_the_topic_cannot_have_is_refused_where_spark_plans(
    bootstrap: str, admin: Admin, name: str
) -> None:
    admin.create_topic(name)
    admin.create_topic(f"{name}-n", schema="n long")
    with pytest.raises(InvalidSetting, match=f"filter needs a topic with columns of its own, and {name} holds records"):
        Stream(bootstrap, VALUE, subscribe=name, filter="key is null")
    with pytest.raises(InvalidSetting, match="filter compares column 'n', which is int64, with 'x'"):
        read(bootstrap, NUMBERS, subscribe=f"{name}-n", filter="n = 'x'")
    admin.create_topic(f"{name}-d", schema="n long, d decimal(8,2)")
    with pytest.raises(InvalidSetting, match="filter has a number of 401 characters at character 5: at most 400 are"):
        read(bootstrap, NUMBERS, subscribe=f"{name}-d", filter="d = 1" + "0" * 400)


def test_a_run_keeps_the_columns_that_it_was_started_with_and_the_next_has_those_that_were_added(
    bootstrap: str, admin: Admin, name: str
) -> None:
    admin.create_topic(name, schema="n long, text string")
    numbers(bootstrap, name, 1)
    first = StructType().add("n", LongType()).add("text", StringType())
    longer = StructType(list(first.fields)).add("word", StringType())
    stream = Stream(bootstrap, first, subscribe=name, startingOffsets="earliest")
    rows = [row for rows in stream.available_now() for row in rows]
    patient = {"bootstrap.servers": bootstrap, "subscribe": name, "requestTimeoutMs": "29999"}
    worker = parse_source(with_environment(patient), streaming=True)
    part = stream.reader.partitions({name: {"0": 0}}, {name: {"0": 1}})[0]
    assert [batch.to_pylist() for batch in read_ranges(worker, first, part)] == [rows]  # type: ignore[arg-type]

    running = Stream(bootstrap, first, stream.at, subscribe=name)
    admin.alter_topic(name, add_columns="word string")
    with Producer(bootstrap) as producer:
        producer.publish(name, {"n": 1, "word": "w"}).result(20)
    assert running.available_now() == [[{"n": 1, "text": None}]]

    # Clients of its own, as a process that is started has
    anew: dict[str, Any] = {"subscribe": name, "requestTimeoutMs": 29_998}
    again = Stream(bootstrap, longer, stream.at, **anew, filter="word = 'w'")
    assert again.available_now() == [[{"n": 1, "text": None, "word": "w"}]]
    assert read(bootstrap, longer, **anew) == [{**rows[0], "word": None}, {"n": 1, "text": None, "word": "w"}]
    assert read(bootstrap, longer, **anew, filter="word IS NULL") == [{**rows[0], "word": None}]
    part = again.reader.partitions({name: {"0": 0}}, {name: {"0": 2}})[0]
    found = [row for batch in read_ranges(worker, longer, part) for row in batch.to_pylist()]  # type: ignore[arg-type]
    assert [row["word"] for row in found] == [None, "w"], "a worker that remembers the topic as it was asks again"
    again.reader.stop()
    stream.reader.stop()


def test_what_the_environment_of_a_worker_says_of_passing_on_does_not_count(
    bootstrap: str, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic(name)
    given = with_environment({"bootstrap.servers": bootstrap, "requestTimeoutMs": "29996"})
    monkeypatch.setenv("TRITONMQ_FORWARD", "perhaps")
    assert name in cluster.connect(parse_sink(given, streaming=True)).topic_names()


def test_a_sink_that_does_not_know_the_columns_that_were_added_goes_on(bootstrap: str, admin: Admin, name: str) -> None:
    admin.create_topic(name, schema="n long, text string")
    options = parse_sink(with_environment({"bootstrap.servers": bootstrap, "topic": name}), streaming=True)
    columns = StructType().add("n", LongType()).add("text", StringType())
    for batch_id in range(2):
        rows = pa.RecordBatch.from_pylist([{"n": batch_id, "text": "a"}])
        staged = stage_rows(options, columns, iter([rows]), MicroBatch(name, name, batch_id, "run"), 0)
        admin.alter_topic(name, add_columns=f"added{batch_id} int")
        decide(options, *manifest_of([staged]))
    wanted = StructType([*columns.fields, StructField("added0", IntegerType()), StructField("added1", IntegerType())])
    found = sorted(tuple(row.values()) for row in read(bootstrap, wanted, subscribe=name, requestTimeoutMs=29_997))
    assert found == [(0, "a", None, None), (1, "a", None, None)]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_worker_that_knows_the_topic_that_was_planned_reads_no_other_of_its_name(
    bootstrap: str, admin: Admin, name: str, fails: str
) -> None:
    admin.create_topic(name)
    publish(bootstrap, name, "former")
    given = {"bootstrap.servers": bootstrap, "subscribe": name, "failOnDataLoss": fails}
    given["endingOffsets"] = json.dumps({name: {"0": 1}})  # up to the latest it would ask for the topic again
    planned = BatchReader(parse_source(with_environment(given), streaming=False), VALUE)
    [part] = planned.partitions()

    def rows() -> list[bytes]:
        return [row["value"] for batch in planned.read(part) for row in batch.to_pylist()]

    assert rows() == [b"former"]
    admin.delete_topic(name)
    admin.create_topic(name)
    publish(bootstrap, name, "present")
    if fails == "true":
        with pytest.raises(DataLoss, match="was deleted while it was read"):
            rows()
    else:
        assert rows() == []
