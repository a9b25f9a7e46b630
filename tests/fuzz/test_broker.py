"""The corpus against a broker's process: what a stranger sends by one request is answered, and the broker lives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from mq_client import Admin, Producer
from mq_dev.embedded_zookeeper import free_port
from mq_protocol import mq_pb2 as pb
from tests.fuzz.filters import ROWS, SCHEMA
from tests.fuzz.harness import corpus
from tests.mq_cli.processes import Command

pytestmark = pytest.mark.cluster

_ANSWERS = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}


@contextlib.contextmanager
def _broker(data: Path) -> Iterator[tuple[str, Command]]:
    address = f"127.0.0.1:{free_port()}"
    with Command("broker", "--id", "1", "--listen", address, "--data", str(data), "--standalone") as broker:
        broker.remark_with("serves")
        yield address, broker


def test_no_filter_and_no_schema_that_is_kept_ends_a_broker(tmp_path: Path) -> None:
    with _broker(tmp_path) as (address, broker), Admin(address) as admin, grpc.insecure_channel(address) as channel:
        admin.create_topic("rows", schema=SCHEMA)
        with Producer(address) as producer:
            producer.publish_batch("rows", ROWS, partition=0)
        fetch: Any = channel.unary_stream("/tritonmq.v1.Broker/Fetch")
        create: Any = channel.unary_unary("/tritonmq.v1.Broker/CreateTopic")
        for path in corpus("filters"):
            request = pb.FetchRequest(topic="rows", end_offset=len(ROWS), filter=path.read_text())
            answer = _told(lambda request=request: list(fetch(request.SerializeToString(), timeout=30)))
            assert answer in _ANSWERS, f"{path.name}: {answer}"
            assert broker.process.poll() is None, f"{path.name} ended the broker"
        for number, path in enumerate(corpus("schemas")):
            made = pb.CreateTopicRequest(name=f"t{number}", partitions=1, replicas=1, schema=path.read_bytes())
            answer = _told(lambda made=made: create(made.SerializeToString(), timeout=30))
            assert answer in _ANSWERS, f"{path.name}: {answer}"
            assert broker.process.poll() is None, f"{path.name} ended the broker"
        assert broker.end() == 0


def _told(ask: Callable[[], object]) -> grpc.StatusCode:
    try:
        ask()
    except grpc.RpcError as error:
        call: Any = error
        code: grpc.StatusCode = call.code()
        return code
    return grpc.StatusCode.OK
