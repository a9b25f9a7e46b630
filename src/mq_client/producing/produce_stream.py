"""One Produce stream to one broker: a thread that receives its answers. Whoever hands over a request sends it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from mq_client.cluster.client import NOBODY, Client
from mq_client.cluster.duplex import Duplex
from mq_client.cluster.lines import heard
from mq_client.errors import TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope


class ProduceStream:
    """Owns the stream, its thread, and the count of what is unanswered on it.

    `on_results` gets answers in the order they come; `on_broken` is called once, last, with whether anything can have
    reached the broker. Both in the stream's thread. `correlations` and `bytes` are the sender's, under its lock.
    """

    def __init__(
        self,
        address: str,
        on_results: Callable[[ProduceStream, Sequence[pb.ProduceResult]], None],
        on_broken: Callable[[ProduceStream, TritonMQError, bool], None],
        client: Client = NOBODY,
    ) -> None:
        self.address = address
        self._client = client
        self.correlations: dict[int, int] = {}  # unanswered: correlation -> bytes
        self.bytes = 0
        self._on_results = on_results
        self._on_broken = on_broken
        # Until there is a connection. Bounded by what the sender lets be unanswered on a stream.
        self._requests: deque[Envelope[pb.ProduceHeader]] = deque()
        self._connecting = threading.Lock()
        self._duplex: Duplex | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"tritonmq-produce-{address}", daemon=True)
        self._thread.start()

    def send(self, request: Envelope[pb.ProduceHeader]) -> None:
        if self._duplex is None:
            with self._connecting:  # else it might overtake those that wait for the connection
                if self._duplex is None:
                    self._requests.append(request)
                    return
        self._duplex.send(request.header.SerializeToString(), request.parts)

    def close(self, timeout_s: float) -> None:
        """End the stream and its thread."""
        self._closed = True
        if self._duplex is not None:
            self._duplex.close()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            duplex = Duplex(self.address, "Produce", self._client)
        except TritonMQError as error:
            self._on_broken(self, error, False)
            return
        why: TritonMQError = Unreachable(f"broker at {self.address} ended the stream")
        try:
            self._hear(duplex)
        except TritonMQError as error:
            why = error
        finally:
            duplex.release()
            self._on_broken(self, why, True)

    def _hear(self, duplex: Duplex) -> None:
        with self._connecting:
            while self._requests:
                request = self._requests.popleft()
                duplex.send(request.header.SerializeToString(), request.parts)
            self._duplex = duplex
        while not self._closed and (message := duplex.receive()) is not None:
            answer = heard(message, pb.ProduceResponse, self.address, self._client)
            self._on_results(self, answer.results)
