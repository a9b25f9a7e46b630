"""gRPC channels to brokers, and what a failed call means.

One channel for each client and address, opened on first use and kept until the client's certificate or token is
replaced. A worker that Spark forks opens its own, because channels are keyed by process id too (it can, as the daemon
that it is forked from has none: forks.py). Not here: which broker to ask, and whether to ask again (connection.py);
Subscribe streams (push_streams.py).
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from mq_client import forks
from mq_client.cluster import forwarding
from mq_client.cluster.credentials import Credentials, current, was_replaced
from mq_client.errors import NotAuthenticated, TritonMQError, Unreachable
from mq_client.security import Security
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope, decode, encode
from mq_protocol.methods import BROKER
from mq_protocol.transport import CHANNEL_OPTIONS, from_call


@dataclass(frozen=True, slots=True)
class Client:
    """Whose channels these are. Users within one process share a connection to a broker only if all of these are
    equal: who has another certificate must never speak on it. `security` None: in plain text, as nobody. `forward`:
    only `addresses` are reached, and pass on what is meant for others."""

    addresses: tuple[str, ...] = ()
    security: Security | None = None
    forward: bool = False


NOBODY: Final = Client()
"""Who asks a single broker, of no cluster in particular."""

_lock = threading.Lock()
_channels: dict[tuple[int, Client, str, str], tuple[int, grpc.Channel]] = {}
_replaced: list[tuple[float, grpc.Channel]] = []

REPLACED_S: Final = 60.0
"""For so long what is under way on a channel goes on once its certificate or token was replaced."""


def _after_fork() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()
    _replaced.clear()


os.register_at_fork(after_in_child=_after_fork)

R = TypeVar("R", bound=Message)


def channel(address: str, client: Client = NOBODY) -> grpc.Channel:
    """This process's channel to `host:port` for that client. It connects when first used, and again by itself.

    Raises `InvalidRequest` in a process that was forked from one that had channels (forks.py).
    """
    # Each broker that is meant has a channel of its own, also where all go to one address: calls are many for one
    dialled = forwarding.entry(address, client)
    key = (os.getpid(), client, address, dialled)
    credentials = current(client.security)
    over: list[grpc.Channel] = []
    with _lock:
        generation, found = _channels.get(key, (-1, None))
        if found is None or generation != credentials.generation:
            forks.check_usable()
            forks.note_used()
            if found is not None:
                _replaced.append((time.monotonic() + REPLACED_S, found))
            found = _open(dialled, credentials)
            _channels[key] = credentials.generation, found
        if _replaced:
            now = time.monotonic()
            over = [channel for until, channel in _replaced if until <= now]
            _replaced[:] = [each for each in _replaced if each[0] > now]
    for channel_over in over:
        channel_over.close()
    return found


def _open(address: str, credentials: Credentials) -> grpc.Channel:
    if credentials.channel is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address, credentials.channel, options=CHANNEL_OPTIONS)


class Made(NamedTuple):
    """With what a call is made: the `generation` of the certificate or token, and what was `dialled`."""

    generation: int
    dialled: str


def made(address: str, client: Client) -> Made:
    """To be asked right before a call to the broker at `address`."""
    return Made(current(client.security).generation, forwarding.entry(address, client))


def meaning(error: Any, address: str, client: Client, made_with: Made) -> TritonMQError:
    """What a failed call means. One that was refused with a token which was replaced meanwhile may be made again.
    `made_with`: what `made` gave right before it."""
    found = from_call(error, forwarding.shown(address, client))
    forwarding.note_failure(error, client, made_with.dialled)
    if isinstance(found, NotAuthenticated):
        if was_replaced(client.security, made_with.generation):
            return Unreachable(f"broker at {address} has refused the former token: ask again with the new one")
        return _told_more(found, client.security)
    return found


def _told_more(refused: NotAuthenticated, security: Security | None) -> NotAuthenticated:
    """The broker says no more to a stranger. The client knows what it has shown."""
    if security is None or str(refused) != NotAuthenticated.NO_MORE:
        return refused
    if not security.has_token:
        return NotAuthenticated(
            f"{refused}: this port takes tokens, and a certificate was shown. Use the port for certificates (--listen "
            "of the broker), or give a token (--token-file, Security(token_file=))"
        )
    which = f"the token in {security.token_file}" if security.token_file is not None else "the token"
    return NotAuthenticated(
        f"{refused}: {which} is wrong, expired or revoked. An administrator sees by `tritonmq token list` which tokens "
        "there are, and the broker's audit.log says why this one was refused"
    )


@atexit.register
def _close_channels() -> None:
    """While gRPC's threads still run: a channel that is left to the interpreter's last collection waits for them for
    ever."""
    with _lock:
        mine = [opened for (process, _, _, _), (_, opened) in _channels.items() if process == os.getpid()]
        mine += [opened for _, opened in _replaced]
        _channels.clear()
        _replaced.clear()
    for opened in mine:
        opened.close()


def call_unary(
    address: str, method: str, request: Message, response: type[R], timeout_s: float, client: Client = NOBODY
) -> R:
    """One request, one answer. Raises the `TritonMQError` that the broker raised, `Unreachable` or `OutcomeUnknown`."""
    assert BROKER.methods[method].response is response
    made_with = made(address, client)
    unary = channel(address, client).unary_unary(
        BROKER.path(method), type(request).SerializeToString, response.FromString
    )
    try:
        answer: R = unary(request, timeout=max(timeout_s, 0.001), metadata=forwarding.metadata(address, client))
    except grpc.RpcError as error:
        raise meaning(error, address, client, made_with) from None
    return answer


def call_later(
    address: str,
    method: str,
    request: Message,
    response: type[R],
    timeout_s: float,
    heard: Callable[[R | TritonMQError], None],
    client: Client = NOBODY,
) -> Callable[[], object]:
    """As `call_unary`, but does not wait: `heard` is called once, in a thread of gRPC's, with the answer or the error.
    What it gives back breaks the call off, which is heard as `Unreachable`."""
    assert BROKER.methods[method].response is response
    made_with = made(address, client)
    unary = channel(address, client).unary_unary(
        BROKER.path(method), type(request).SerializeToString, response.FromString
    )
    call = unary.future(request, timeout=max(timeout_s, 0.001), metadata=forwarding.metadata(address, client))

    def done(over: Any) -> None:
        heard(over.result() if over.code() is grpc.StatusCode.OK else meaning(over, address, client, made_with))

    call.add_done_callback(done)
    cancel: Callable[[], object] = call.cancel
    return cancel


def open_produce(address: str, requests: Iterator[Envelope[pb.ProduceHeader]], client: Client = NOBODY) -> Any:
    """A Produce stream: the call, iterated for `pb.ProduceResponse`."""
    stream = channel(address, client).stream_stream(BROKER.path("Produce"), encode, pb.ProduceResponse.FromString)
    return stream(requests, metadata=forwarding.metadata(address, client))


def open_fetch(address: str, request: pb.FetchRequest, timeout_s: float | None = None, client: Client = NOBODY) -> Any:
    """A Fetch stream: the call, iterated for `Envelope[pb.BatchesHeader]`."""
    stream = channel(address, client).unary_stream(
        BROKER.path("Fetch"), pb.FetchRequest.SerializeToString, decode_batches
    )
    return stream(request, timeout=timeout_s, metadata=forwarding.metadata(address, client))


def open_watch_offsets(address: str, request: pb.WatchOffsetsRequest, client: Client = NOBODY) -> Any:
    """A WatchOffsets stream: the call, iterated for `pb.WatchOffsetsResponse`."""
    stream = channel(address, client).unary_stream(
        BROKER.path("WatchOffsets"), pb.WatchOffsetsRequest.SerializeToString, pb.WatchOffsetsResponse.FromString
    )
    return stream(request, metadata=forwarding.metadata(address, client))


def decode_batches(data: bytes) -> Envelope[pb.BatchesHeader]:
    """A message of a Fetch or Subscribe stream; the payload stays where it is."""
    return decode(data, pb.BatchesHeader)
