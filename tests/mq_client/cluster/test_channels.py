"""What a failed call means, and whose channel it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from mq_client.cluster import channels
from mq_client.errors import InternalError, NotLeader, OutcomeUnknown, TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import to_wire
from mq_protocol.methods import BROKER
from mq_protocol.transport import ERROR_METADATA, MethodUnknown

Serve = Callable[[Callable[[grpc.ServicerContext], None]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answers Metadata by what it is given to do with the call; its address."""
    servers: list[grpc.Server] = []

    def start(handle: Callable[[grpc.ServicerContext], None]) -> str:
        def answer(_request: bytes, context: grpc.ServicerContext) -> bytes:
            handle(context)
            return b""

        server = grpc.server(ThreadPoolExecutor(2))
        methods: dict[str, Any] = {"Metadata": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(BROKER.name, methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None).wait(5)


def ask(address: str, timeout_s: float = 5) -> TritonMQError:
    with pytest.raises(TritonMQError) as caught:
        channels.call_unary(address, "Metadata", pb.MetadataRequest(), pb.MetadataResponse, timeout_s)
    return caught.value


def test_the_brokers_own_error_comes_whole(serve: Serve) -> None:
    def refuse(context: grpc.ServicerContext) -> None:
        wire = to_wire(NotLeader("2 leads", 2, 7)).SerializeToString()
        context.set_trailing_metadata(((ERROR_METADATA, wire),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "2 leads")

    error = ask(serve(refuse))
    assert isinstance(error, NotLeader)
    assert (str(error), error.leader, error.leader_epoch) == ("2 leads", 2, 7)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, Unreachable),
        (grpc.StatusCode.UNIMPLEMENTED, MethodUnknown),
        (grpc.StatusCode.INTERNAL, Unreachable),
        (grpc.StatusCode.UNKNOWN, Unreachable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, InternalError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, OutcomeUnknown),
    ],
)
def test_without_one_the_status_says_what_it_can(
    serve: Serve, code: grpc.StatusCode, kind: type[TritonMQError]
) -> None:
    address = serve(lambda context: context.abort(code, "because"))
    error = ask(address)
    assert type(error) is kind
    assert address in str(error)


def test_an_error_that_cannot_be_read_does_not_hide_the_status(serve: Serve) -> None:
    def garble(context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata(((ERROR_METADATA, b"\xff\xff"),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "because")

    assert type(ask(serve(garble))) is Unreachable


def test_a_channel_belongs_to_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = channels.channel("127.0.0.1:1")
    assert channels.channel("127.0.0.1:1") is mine
    monkeypatch.setattr(os, "getpid", lambda: -1)
    forked = channels.channel("127.0.0.1:1")
    assert forked is not mine
    forked.close()


def test_at_the_end_of_a_process_its_own_channels_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def opened(name: str) -> Any:
        return 0, SimpleNamespace(close=lambda: closed.append(name))

    known: Any = {
        (os.getpid(), channels.NOBODY, "b:1", "b:1"): opened("mine"),
        (os.getpid(), channels.NOBODY, "b:2", "b:1"): opened("mine too"),
        (-1, channels.NOBODY, "b:1", "b:1"): opened("of the process that this one was forked from"),
    }
    monkeypatch.setattr(channels, "_channels", known)
    channels._close_channels()
    assert closed == ["mine", "mine too"]
    assert known == {}
