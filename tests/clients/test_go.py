"""The Go client beside the Python one, at a real cluster. `make go` runs these."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from mq_client import Producer, Reader
from mq_protocol import mq_pb2 as pb
from mq_protocol.sql.ddl import parse_schema
from tests.clients.conftest import BUILD_S, CLIENT, COMPILES, FLAGS, RUN, go
from tests.cluster.harness import Cluster

ASK_S = 60
RECORDS = 100_000

pytestmark = [
    pytest.mark.go,
    pytest.mark.skipif(not os.environ.get("TRITONMQ_TEST_GO"), reason="needs Go: make go"),
    pytest.mark.timeout(BUILD_S + 180),
]

COLUMNS = (
    "id long not null, a boolean, b byte, c short, d int, f float, g double, h string, i binary, j date, k timestamp, "
    "l timestamp_ntz, m decimal(10,2), o array<int>, p array<struct<q:string,r:array<double>>>, s map<string,long>, "
    "t struct<u:int,v:map<int,date>>"
)

DAY = datetime.date(2024, 2, 29)
TIME = datetime.datetime(2024, 2, 29, 12, 30, 1, 5)
ROWS = [
    {
        "id": 1, "a": True, "b": -128, "c": 32767, "d": -5, "f": 0.5, "g": 1e300, "h": "käse", "i": b"\x00\xff",
        "j": DAY, "k": TIME.replace(tzinfo=datetime.UTC), "l": TIME, "m": decimal.Decimal("-12.34"), "o": [1, None, 3],
        "p": [{"q": "x", "r": [1.5, None]}, None, {"q": None, "r": None}], "s": [("one", 1), ("none", None)],
        "t": {"u": 7, "v": [(1, DAY), (2, None)]},
    },
    {"id": 2},
    {"id": 3, "h": "", "i": b"", "o": [], "p": [], "s": [], "t": {"u": None, "v": []}},
]  # fmt: skip


def _copy(programs: Path, cluster: Cluster, source: str, target: str, name: uuid.UUID) -> dict[str, Any]:
    command = [programs / "tritonmq-copy", cluster.grpc, source, target, "1", str(name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False)
    assert done.returncode == 0, done.stderr
    place: dict[str, Any] = json.loads(done.stdout)
    return place


def _table(cluster: Cluster, topic: str) -> pa.Table:
    with Reader(cluster.bootstrap) as reader:
        return pa.Table.from_batches(list(reader.read(topic, 1)))


def test_go_and_python_exchange_typed_rows_and_send_each_others_uuids_again_without_a_double(
    cluster: Cluster, programs: Path
) -> None:
    for topic in ("ours", "theirs"):
        cluster.admin.create_topic(topic, partitions=2, replicas=3, schema=COLUMNS)
    rows = pa.RecordBatch.from_pylist(ROWS, schema=parse_schema(COLUMNS))
    python_uuid, go_uuid = uuid.uuid4(), uuid.uuid4()
    with Producer(cluster.bootstrap) as producer:
        placed = producer.publish_batch("ours", rows, partition=1, uuid=python_uuid).result(ASK_S)
        assert not placed.places[0].duplicate
        assert _copy(programs, cluster, "ours", "theirs", go_uuid) == _place(0, duplicate=False)
        assert _table(cluster, "theirs").to_pylist() == rows.to_pylist()  # what Go wrote, of what it had read
        again = producer.publish_batch("theirs", rows, partition=1, uuid=go_uuid).result(ASK_S)
        assert (again.places[0].duplicate, again.base_offset) == (True, 0)  # Python sends again what Go has sent
    assert _copy(programs, cluster, "theirs", "ours", python_uuid) == _place(0, duplicate=True)  # and the reverse
    assert _copy(programs, cluster, "ours", "theirs", go_uuid) == _place(0, duplicate=True)
    assert _table(cluster, "ours").num_rows == _table(cluster, "theirs").num_rows == len(ROWS)


def test_what_was_stored_before_a_column_was_added_has_nulls_there(cluster: Cluster, programs: Path) -> None:
    cluster.admin.create_topic("before", partitions=2, schema="n long, s struct<a:int,b:array<string>>")
    wider = "n long, s struct<a:int,b:array<string>>, m map<string,int>"
    cluster.admin.create_topic("after", partitions=2, schema=wider)
    with Producer(cluster.bootstrap) as producer:
        rows = [{"n": n, "s": {"a": n, "b": ["x"]}} for n in range(3)]
        producer.publish_batch("before", pa.Table.from_pylist(rows, parse_schema(wider).remove(2)), partition=1).result(
            ASK_S
        )
    cluster.admin.alter_topic("before", add_columns="m map<string,int>")
    _copy(programs, cluster, "before", "after", uuid.uuid4())
    assert _table(cluster, "after").to_pylist() == [{**row, "m": None} for row in rows]


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_records_that_are_on_their_way_when_the_leader_is_killed_or_held_are_there_once_and_in_order(
    cluster: Cluster, programs: Path, fault: signal.Signals
) -> None:
    topic = f"numbers-{fault.name}"
    cluster.admin.create_topic(topic, partitions=1, replicas=3)
    command = [programs / "tritonmq-count", cluster.grpc, topic, "0", str(RECORDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as counting:
        assert counting.stdout is not None
        assert counting.stderr is not None
        told = 0
        for line in counting.stdout:
            told = int(line)
            if told == RECORDS // 5:
                cluster.brokers[cluster.leader(topic, 0)].send_if_running(fault)
                assert counting.poll() is None
        assert (counting.wait(ASK_S), counting.stderr.read()) == (0, "")
    assert told == RECORDS
    with Reader(cluster.bootstrap) as reader:
        values = [value for batch in reader.read(topic, 0) for value in batch.column("value").to_pylist()]
    assert values == [b"%d" % n for n in range(RECORDS)]


def _place(offset: int, *, duplicate: bool) -> dict[str, Any]:
    return {"Partition": 1, "Offset": offset, "Duplicate": duplicate}


def test_the_tests_of_the_go_client_pass(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(brokers=1, flight=True, grpc=True)
    environment = {
        **os.environ,
        **COMPILES,
        "TRITONMQ_GO_BOOTSTRAP": cluster.grpc,
        "TRITONMQ_GO_FLIGHT": cluster.brokers[1].flight,
    }
    cluster.admin.create_topic("numbers", partitions=2, schema="n long, name string")
    cluster.admin.create_topic("flights", schema="n long, name string")
    cluster.admin.create_topic("records", partitions=3)
    command = [go(), "test", *FLAGS, *RUN, "-vet=off", "-count=1", "./..."]  # `make go` has vetted all of it
    done = subprocess.run(
        command, cwd=CLIENT, env=environment, capture_output=True, text=True, errors="replace", timeout=BUILD_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_generated_go_code_is_of_messages_as_they_are() -> None:
    """By its descriptor. It may lack what the Go client has no use for: brokers and clients pass over such fields."""
    lines = (CLIENT / "pb" / "mq.pb.go").read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if "_rawDesc = " in line)
    literal = "".join(line.strip().removesuffix(" +")[1:-1] for line in lines[start + 1 :] if line.startswith('\t"'))
    generated = FileDescriptorProto.FromString(literal.encode("latin-1").decode("unicode_escape").encode("latin-1"))
    ours = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    assert set(_parts(generated, "")) <= set(_parts(ours, "")), "run `make go-proto`"


def _parts(of: Any, path: str) -> Iterator[tuple[str, bytes]]:
    """Each field, value of an enum and method by itself, and what it is in. protoc writes the names for JSON for one
    language and not for the other."""
    for kind in ("message_type", "nested_type", "enum_type", "service"):
        for each in getattr(of, kind, ()):
            yield from _parts(each, f"{path}/{each.name}")
    for kind in ("field", "value", "method"):
        for part in getattr(of, kind, ()):
            if kind == "field":
                part.ClearField("json_name")
            yield path, part.SerializeToString()
