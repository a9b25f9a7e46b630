"""A broker that is far away, or busy: reached all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from mq_client.cluster.channels import call_unary
from mq_client.errors import InvalidRequest, TritonMQError
from mq_protocol import mq_pb2 as pb
from tests.chaos.network import CLIENTS, Network

DELAY_S = 0.7
PATIENCE_S = 30.0


@pytest.fixture
def far_away() -> Iterator[str]:
    """The address of a gRPC server without services, each way to it as slow as a bad line or a broker out of breath."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    network = Network(dict)
    network.slow(CLIENTS, "1", DELAY_S)
    yield f"127.0.0.1:{network.listen('1', port)}"
    network.close()
    server.stop(None).wait(5)


def test_a_broker_that_takes_more_than_half_a_second_to_greet_is_reached(far_away: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    last: TritonMQError | None = None
    while not isinstance(last, InvalidRequest):  # it has answered then: it does not know the method
        assert time.monotonic() < deadline, last
        with pytest.raises(TritonMQError) as raised:
            call_unary(far_away, "Metadata", pb.MetadataRequest(), pb.MetadataResponse, PATIENCE_S)
        last = raised.value
        time.sleep(0.1)
