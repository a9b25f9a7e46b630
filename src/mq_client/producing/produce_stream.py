"""One Produce stream to one broker: requests go out as they are given, answers come in on a thread of its own.

It goes over the broker's stream port where that can be reached (cluster/streams.py), else by gRPC, which reads the
requests from a queue.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from mq_client.cluster import forwarding, streams
from mq_client.cluster.channels import NOBODY, Client, channel, made, meaning, open_produce
from mq_client.cluster.streams import Duplex, NoStreamPort
from mq_client.errors import TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope
from mq_protocol.streams import Kind, parsed, say_envelope

log = logging.getLogger(__name__)

_CONNECT_S: Final = 2.0
_END: Final = None


class ProduceStream:
    """Owns the stream, its thread, and the count of what is unanswered on it.

    `on_results` gets answers in the order they come; `on_broken` is called once, last, with whether anything can have
    reached the broker. Both in the stream's thread. `correlations` and `bytes` are the sender's, under its lock.
    `stream_address`: the broker's stream port; empty if it has none.
    """

    def __init__(
        self,
        address: str,
        on_results: Callable[[ProduceStream, Sequence[pb.ProduceResult]], None],
        on_broken: Callable[[ProduceStream, TritonMQError, bool], None],
        client: Client = NOBODY,
        stream_address: str = "",
    ) -> None:
        self.address = address
        self._stream_address = stream_address
        self._client = client
        self.correlations: dict[int, int] = {}  # unanswered: correlation -> bytes
        self.bytes = 0
        self._on_results = on_results
        self._on_broken = on_broken
        # Bounded by what the sender lets be unanswered on a stream.
        self._requests: queue.Queue[Envelope[pb.ProduceHeader] | None] = queue.Queue()
        self._connecting = threading.Lock()
        self._duplex: Duplex | None = None
        self._call: Any = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"tritonmq-produce-{address}", daemon=True)
        self._thread.start()

    def send(self, request: Envelope[pb.ProduceHeader]) -> None:
        if self._duplex is None:
            with self._connecting:  # else it might overtake those that wait for the connection
                if self._duplex is None:
                    self._requests.put(request)
                    return
        self._duplex.send(say_envelope(request))

    def close(self, timeout_s: float) -> None:
        """End the stream and its thread."""
        self._closed = True
        self._requests.put(_END)
        if self._duplex is not None:
            self._duplex.close()
        call = self._call
        if call is not None:
            call.cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            duplex = self._dialled()
        except TritonMQError as error:
            self._on_broken(self, error, False)
            return
        if duplex is not None:
            self._hear(duplex)
        else:
            self._hear_by_grpc()

    def _dialled(self) -> Duplex | None:
        """The connection; None if gRPC has one. Raises `Unreachable` if there is neither."""
        tried = streams.usable(self._stream_address)
        if tried:
            try:
                return Duplex(*streams.dial(self._stream_address, self._client), self.address)
            except NoStreamPort as error:
                log.debug("%s; gRPC is tried", error)
        dialled = forwarding.entry(self.address, self._client)
        if not connected(self.address, _CONNECT_S, self._client):
            forwarding.note_unreachable(self._client, dialled)
            raise Unreachable(f"broker at {dialled} cannot be reached")
        streams.check_not_required(self._stream_address)
        if tried:
            streams.avoid(self._stream_address)
        return None

    def _hear(self, duplex: Duplex) -> None:
        error: TritonMQError = Unreachable(f"broker at {self.address} ended the stream")
        reached = True
        try:
            duplex.send(streams.open_message("Produce"))
            with self._connecting:
                while not self._requests.empty():
                    request = self._requests.get()
                    if request is not _END:
                        duplex.send(say_envelope(request))
                self._duplex = duplex
            while not self._closed and (message := duplex.receive()).kind is Kind.MESSAGE:
                self._on_results(self, parsed(message.body, pb.ProduceResponse).results)
        except TritonMQError as cause:
            error = cause
            if streams.is_for_grpc(cause, self._stream_address):
                error, reached = Unreachable(f"{cause}; gRPC is tried"), False
        finally:
            duplex.release()
            self._on_broken(self, error, reached)

    def _hear_by_grpc(self) -> None:
        made_with = made(self.address, self._client)
        self._call = open_produce(self.address, iter(self._requests.get, _END), self._client)
        if self._closed:
            self._call.cancel()
        error: TritonMQError = Unreachable(f"broker at {self.address} ended the stream")
        try:
            for response in self._call:
                self._on_results(self, response.results)
        except grpc.RpcError as cause:
            error = meaning(cause, self.address, self._client, made_with)
        finally:
            self._requests.put(_END)  # lets gRPC's thread that reads the queue go
            self._call.cancel()
            self._on_broken(self, error, True)


def connected(address: str, timeout_s: float, client: Client = NOBODY) -> bool:
    """Whether there is a connection, waiting for one that is being made. False as soon as an attempt has failed."""
    states: queue.Queue[grpc.ChannelConnectivity] = queue.Queue()
    to_broker = channel(address, client)
    to_broker.subscribe(states.put, try_to_connect=True)
    try:
        while True:
            state = states.get(timeout=timeout_s)
            if state is grpc.ChannelConnectivity.READY:
                return True
            if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                return False
    except queue.Empty:
        return False
    finally:
        to_broker.unsubscribe(states.put)
