"""The corpus and random requests against a broker's process: each is answered, and the broker lives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from google.protobuf.message import Message

from mq_client import Producer
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from tests.fuzz.brokers import GROWTH_BYTES_MAX, attack, broker
from tests.fuzz.filters import ROWS
from tests.fuzz.harness import corpus
from tests.mq_broker.broker.channel import Channel
from tests.switch import plain_text

pytestmark = [pytest.mark.cluster, plain_text("it speaks with a broker of its own, below the client")]

_STATUSES = {"INVALID_ARGUMENT", "FAILED_PRECONDITION"}
ATTACK_S = 4.0
"""`python -m tests.fuzz.brokers` takes minutes."""


def test_no_input_that_is_kept_and_no_request_by_the_grammar_ends_a_broker(tmp_path: Path) -> None:
    with broker(tmp_path) as (address, running):
        with Producer(address) as producer:
            producer.publish_batch("rows", ROWS, partition=0)
        for path in corpus("filters"):
            request = pb.FetchRequest(topic="rows", end_offset=len(ROWS), filter=path.read_text())
            assert (told := _refusal(address, "Fetch", request)) in (None, *_STATUSES), f"{path.name}: {told}"
            assert running.process.poll() is None, f"{path.name} ended the broker"
        for number, path in enumerate(corpus("schemas")):
            made = pb.CreateTopicRequest(name=f"kept{number}", partitions=1, replicas=1, schema=path.read_bytes())
            assert (told := _refusal(address, "CreateTopic", made)) in (None, *_STATUSES), f"{path.name}: {told}"
            assert running.process.poll() is None, f"{path.name} ended the broker"
        outcome = asyncio.run(attack(address, psutil.Process(running.pid), 1, ATTACK_S))
        assert outcome.failures == []
        assert sum(outcome.answers.values()) > 100, outcome.answers
        assert outcome.grown_bytes < GROWTH_BYTES_MAX
        assert running.end() == 0


def _refusal(address: str, method: str, request: Message) -> str | None:
    """The status of the error that it ends with; None if it is answered."""

    async def ask() -> None:
        async for _ in Channel(address).answers(method, request.SerializeToString()):
            pass

    try:
        asyncio.run(ask())
    except TritonMQError as error:
        return error.grpc_status
    return None
