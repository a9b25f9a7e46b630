"""The corpus and random requests against a broker's process: each is answered, and the broker lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from mq_client import Producer
from mq_protocol import mq_pb2 as pb
from tests.fuzz.brokers import GROWTH_BYTES_MAX, attack, broker
from tests.fuzz.filters import ROWS
from tests.fuzz.harness import corpus
from tests.switch import plain_text

pytestmark = [pytest.mark.cluster, plain_text("it speaks with a broker of its own, below the client")]

_ANSWERS = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}


ATTACK_S = 4.0
"""`python -m tests.fuzz.brokers` takes minutes."""


def test_no_input_that_is_kept_and_no_request_by_the_grammar_ends_a_broker(tmp_path: Path) -> None:
    with broker(tmp_path) as (address, running), grpc.insecure_channel(address) as channel:
        with Producer(address) as producer:
            producer.publish_batch("rows", ROWS, partition=0)
        fetch: Any = channel.unary_stream("/tritonmq.v1.Broker/Fetch")
        create: Any = channel.unary_unary("/tritonmq.v1.Broker/CreateTopic")
        for path in corpus("filters"):
            request = pb.FetchRequest(topic="rows", end_offset=len(ROWS), filter=path.read_text())
            answer = _told(lambda request=request: list(fetch(request.SerializeToString(), timeout=30)))
            assert answer in _ANSWERS, f"{path.name}: {answer}"
            assert running.process.poll() is None, f"{path.name} ended the broker"
        for number, path in enumerate(corpus("schemas")):
            made = pb.CreateTopicRequest(name=f"kept{number}", partitions=1, replicas=1, schema=path.read_bytes())
            answer = _told(lambda made=made: create(made.SerializeToString(), timeout=30))
            assert answer in _ANSWERS, f"{path.name}: {answer}"
            assert running.process.poll() is None, f"{path.name} ended the broker"
        outcome = asyncio.run(attack(address, psutil.Process(running.pid), 1, ATTACK_S))
        assert outcome.failures == []
        assert sum(outcome.answers.values()) > 100, outcome.answers
        assert outcome.grown_bytes < GROWTH_BYTES_MAX
        assert running.end() == 0


def _told(ask: Callable[[], object]) -> grpc.StatusCode:
    try:
        ask()
    except grpc.RpcError as error:
        call: Any = error
        code: grpc.StatusCode = call.code()
        return code
    return grpc.StatusCode.OK
