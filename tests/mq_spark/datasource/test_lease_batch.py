"""A batch read that leases, on a real broker and without Spark: what is lent, read again, settled, lost and given back.
Spark pickles the data source between its calls, and so does this."""

from __future__ import annotations

import pickle
import time
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from mq_client import Admin, Producer, Queue
from mq_protocol.errors import InvalidRequest, InvalidSetting
from mq_spark.datasource.lease_readers import METADATA, settle
from mq_spark.datasource.source import TritonMQSource
from tests.mq_spark.datasource.calls import counts


@pytest.fixture
def topic(admin: Admin, bootstrap: str) -> str:
    """Of two partitions, with the records a to e."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin.create_topic(name, partitions=2)
    with Producer(bootstrap) as producer:
        for number, value in enumerate("abcde"):
            producer.publish(name, value.encode(), partition=number % 2)
    return name


class Read:
    """What `spark.read.format("tritonmq")…load()` is: a data source that was asked for its columns."""

    def __init__(self, bootstrap: str, topic: str, **options: Any) -> None:
        given = {"bootstrap.servers": bootstrap, "subscribe": topic, "lease.group": "g"}
        given |= {name.replace("_", "."): str(value) for name, value in options.items()}
        source = TritonMQSource(given)
        self.columns = source.schema()
        self._source = pickle.dumps(source)

    @property
    def source(self) -> TritonMQSource:
        found: TritonMQSource = pickle.loads(self._source)
        return found

    def rows(self) -> list[str]:
        reader = pickle.loads(pickle.dumps(self.source.reader(self.columns)))
        batches = [batch for work in reader.partitions() for batch in reader.read(work)]
        return sorted(value.decode() for batch in batches for value in batch.column("value").to_pylist())

    def settle(self, *names: str) -> int:
        """Of a DataFrame that has these columns left."""
        left = StructType([field for field in self.columns if not names or field.name in names])
        frame: Any = SimpleNamespace(schema=StructType.fromJson(left.jsonValue()))
        return settle(frame)


def test_a_read_has_the_same_rows_however_often_it_is_evaluated_and_settles_nothing(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    read = Read(bootstrap, topic)
    assert counts(admin, topic) == (0, 5, 0)
    assert read.rows() == list("abcde")
    with Producer(bootstrap) as producer:
        producer.publish(topic, b"f").result(30)
    assert read.rows() == list("abcde")
    assert counts(admin, topic) == (1, 5, 0)
    assert Read(bootstrap, topic).rows() == ["f"], "another read is lent what is left"


def test_what_was_read_is_settled_once_whatever_was_selected_since(bootstrap: str, admin: Admin, topic: str) -> None:
    read = Read(bootstrap, topic, lease_rows=3)
    assert len(read.rows()) == 3
    assert read.settle("value") == 3
    assert counts(admin, topic) == (2, 0, 3)
    assert read.settle() == 3, "said again, it changes nothing"
    assert counts(admin, topic) == (2, 0, 3)
    assert len(read.rows()) == 3, "the same rows, whatever became of them"


def test_with_leaselost_skip_a_read_goes_on_without_what_others_have(bootstrap: str, admin: Admin, topic: str) -> None:
    read = Read(bootstrap, topic, lease_ms=1_000, leaseLost="skip", lease_rows=2)
    while counts(admin, topic)[0] < 5:  # until its leases have run out
        time.sleep(0.05)
    with Queue(bootstrap, topic, "g", in_flight_max=1) as queue:
        record = queue.take(timeout_ms=30_000)
        assert record is not None
        assert record.value.decode() not in read.rows()


def test_a_stream_without_its_name_is_refused_and_gives_back_what_it_was_lent(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    read = Read(bootstrap, topic)
    with pytest.raises(InvalidSetting, match=r"lease\.member is missing"):
        read.source.streamReader(read.columns)
    assert counts(admin, topic) == (5, 0, 0)


def test_columns_of_ones_own_are_refused(bootstrap: str, topic: str) -> None:
    source = TritonMQSource({"bootstrap.servers": bootstrap, "subscribe": topic, "lease.group": "g"})
    with pytest.raises(InvalidSetting, match=r"leave \.schema\(\.\.\.\) out"):
        source.reader(StructType([StructField("value", StringType())]))


@pytest.mark.parametrize("mark", ["{}", "no json", '{"group": 1, "member": 2, "leases": [1]}'])
def test_a_mark_that_no_read_has_made_is_refused(mark: str) -> None:
    frame: Any = SimpleNamespace(schema=StructType([StructField("a", StringType(), True, {METADATA: mark})]))
    with pytest.raises(InvalidRequest, match="no batch read has written"):
        settle(frame)


def test_a_frame_without_a_mark_is_refused() -> None:
    frame: Any = SimpleNamespace(schema=StructType([StructField("a", StringType())]))
    with pytest.raises(InvalidRequest, match="give the DataFrame that load"):
        settle(frame)
