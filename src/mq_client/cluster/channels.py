"""gRPC channels to brokers, and what a failed call means.

One channel an address a process, opened on first use and kept: a worker that Spark forks opens its own, because channels are keyed
by process id (it can, as the daemon that it is forked from has none: forks.py). Not here: which
broker to ask, and whether to ask again (connection.py); Subscribe streams (push_streams.py).
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from mq_client import forks
from mq_client.errors import InternalError, InvalidRequest, OutcomeUnknown, TritonMQError, Unreachable
from mq_protocol import errors, limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope, decode, encode
from mq_protocol.methods import BROKER

ERROR_METADATA: Final = "tritonmq-error-bin"

OPTIONS: Final[list[tuple[str, int]]] = [
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
    # A machine that vanished is noticed in 15 s; a killed process closes its connection at once.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Back-off is ours (deadline.py): gRPC's own would make a restarted broker wait minutes to be seen.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also how long an attempt may take: a busy broker greets late
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]

_lock = threading.Lock()
_channels: dict[tuple[int, str], grpc.Channel] = {}


def _after_fork() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

R = TypeVar("R", bound=Message)


def channel(address: str) -> grpc.Channel:
    """This process's channel to `host:port`. It connects when first used, and again by itself.

    Raises `InvalidRequest` in a process that was forked from one that had channels (forks.py).
    """
    key = (os.getpid(), address)
    with _lock:
        found = _channels.get(key)
        if found is None:
            forks.check_usable()
            forks.note_used()
            found = _channels[key] = grpc.insecure_channel(address, options=OPTIONS)
        return found


@atexit.register
def _close_channels() -> None:
    """While gRPC's threads still run: a channel that is left to the interpreter's last collection waits for them for ever."""
    with _lock:
        mine = [opened for (process, _), opened in _channels.items() if process == os.getpid()]
        _channels.clear()
    for opened in mine:
        opened.close()


def call_unary(address: str, method: str, request: Message, response: type[R], timeout_s: float) -> R:
    """One request, one answer. Raises the `TritonMQError` that the broker raised, `Unreachable` or `OutcomeUnknown`."""
    assert BROKER.methods[method].response is response
    unary = channel(address).unary_unary(BROKER.path(method), type(request).SerializeToString, response.FromString)
    try:
        answer: R = unary(request, timeout=max(timeout_s, 0.001))
    except grpc.RpcError as error:
        raise error_of(error, address) from None
    return answer


def open_produce(address: str, requests: Iterator[Envelope[pb.ProduceHeader]]) -> Any:
    """A Produce stream: the call, iterated for `pb.ProduceResponse`."""
    stream = channel(address).stream_stream(BROKER.path("Produce"), encode, pb.ProduceResponse.FromString)
    return stream(requests)


def open_fetch(address: str, request: pb.FetchRequest, timeout_s: float | None = None) -> Any:
    """A Fetch stream: the call, iterated for `Envelope[pb.BatchesHeader]`."""
    stream = channel(address).unary_stream(BROKER.path("Fetch"), pb.FetchRequest.SerializeToString, decode_batches)
    return stream(request, timeout=timeout_s)


def open_watch_offsets(address: str, request: pb.WatchOffsetsRequest) -> Any:
    """A WatchOffsets stream: the call, iterated for `pb.WatchOffsetsResponse`."""
    stream = channel(address).unary_stream(
        BROKER.path("WatchOffsets"), pb.WatchOffsetsRequest.SerializeToString, pb.WatchOffsetsResponse.FromString
    )
    return stream(request)


def error_of(error: grpc.RpcError, address: str) -> TritonMQError:
    """What a failed call means: the broker's own error where it gave one; else what not answering means here."""
    call: Any = error  # what stubs raise is the call as well, which RpcError's type does not say
    for key, value in call.trailing_metadata() or ():
        if key == ERROR_METADATA:
            try:
                return errors.from_wire(pb.Error.FromString(value))
            except DecodeError:
                break
    code, details = call.code(), call.details()
    match code:
        # A broker's own failures carry its error: without one these are gRPC's, about a connection that broke.
        case (
            grpc.StatusCode.UNAVAILABLE
            | grpc.StatusCode.CANCELLED
            | grpc.StatusCode.INTERNAL
            | grpc.StatusCode.UNKNOWN
            | grpc.StatusCode.ABORTED
        ):
            return Unreachable(f"broker at {address} cannot be reached: {details}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return OutcomeUnknown(f"broker at {address} did not answer in time: ask again")
        case grpc.StatusCode.UNIMPLEMENTED:
            return InvalidRequest(
                f"broker at {address} does not know this request: it runs another version, or is no TritonMQ broker"
            )
        case _:
            return InternalError(f"broker at {address} failed with {code.name}: {details}")


def decode_batches(data: bytes) -> Envelope[pb.BatchesHeader]:
    """A message of a Fetch or Subscribe stream; the payload stays where it is."""
    return decode(data, pb.BatchesHeader)
