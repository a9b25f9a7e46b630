"""The pages of a broker for programs that watch it: /metrics, /livez, /readyz, /observation.

Raw ASGI under uvicorn's protocol, on the loop that carries the data; imported only where the broker is to serve HTTP.
Connections are accepted as those of links and streams are, so strangers are bounded as they are there.

With a certificate the port speaks HTTPS. Whoever asks may show a certificate too, and is `User:ANONYMOUS` without one.
`/metrics` and `/observation` then need the right Metrics on the cluster. Whether the broker lives and is ready is told
to everybody.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import uvicorn
from google.protobuf.json_format import MessageToJson
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from mq_broker.broker.metrics.exposition import exposition
from mq_broker.broker.metrics.observing import Observing
from mq_broker.rpc.callers import principal
from mq_broker.rpc.gate import Gate
from mq_broker.rpc.wire.accepting import Accepting, begin
from mq_broker.rpc.wire.framed import Tls, peer_of, proved
from mq_broker.security.names import ANONYMOUS
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import CLUSTER_NAME, Kind, Operation
from mq_protocol.errors import NotAuthenticated, PermissionDenied, TritonMQError, Unreachable

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 32
"""Of more than these one ends: at the address that has most of them, the one that is there longest. So nobody at
another address keeps out what collects metrics."""

ACCEPTS_PER_S: Final = 200
LIFE_S: Final = 60.0
"""After so long a connection ends, whatever it does: no longer is one held that asks nothing, or reads byte by byte."""

KEEP_ALIVE_S: Final = 5
ANSWER_S: Final = 10.0
"""For so long an answer may be gathered."""

_DETAILS: Final = {"broker": pb.BROKER, "topic": pb.TOPICS, "partition": pb.PARTITIONS}
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
Scope = dict[str, Any]
Answer = tuple[int, str, Sequence[bytes]]
"""The status, what kind of text, and its pieces."""

PIECE_BYTES: Final = 64 << 10
"""Of an answer are sent before others have their turn: a megabyte is copied three times on its way to the kernel."""


class Pages:
    """Owns the text that was written last, which all who ask for it soon are given. `ready`: why the broker is not to
    be sent work yet; empty if it is. `gate` judges who may see numbers; None: everybody may."""

    def __init__(self, observing: Observing, ready: Callable[[], str], gate: Gate | None) -> None:
        self._observing = observing
        self._ready = ready
        self._gate = gate
        self._told: dict[int, tuple[object, asyncio.Task[list[bytes]]]] = {}

    async def __call__(
        self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """One request, by ASGI's rules."""
        if scope["type"] != "http":
            return
        status, kind, pieces = await self._answer(scope)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(sum(map(len, pieces))).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if scope["method"] != "HEAD":
            for piece in _of_size(pieces):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, scope: Scope) -> Answer:
        if scope["method"] not in ("GET", "HEAD"):
            return 405, _TEXT, [b"give GET\n"]
        match scope["path"]:
            case "/livez":
                return 200, _TEXT, [b"ok\n"]
            case "/readyz":
                why = self._ready()
                return (503, _TEXT, [f"{why}\n".encode()]) if why else (200, _TEXT, [b"ok\n"])
            case "/metrics" | "/observation" as path:
                if (refused := self._refused(scope["state"]["connection"], path)) is not None:
                    return refused
                detail = _detail(scope["query_string"])
                if detail is None:
                    return 400, _TEXT, [f"detail is one of {', '.join(_DETAILS)}\n".encode()]
                try:
                    async with asyncio.timeout(ANSWER_S):
                        return await (self._metrics(detail) if path == "/metrics" else self._observation(detail))
                except (TimeoutError, TritonMQError) as error:
                    return 503, _TEXT, [f"{error or 'not gathered in time: ask again'}\n".encode()]
            case _:
                pass
        return 404, _TEXT, [b"there are /metrics, /observation, /livez and /readyz\n"]

    def _refused(self, connection: Connection, path: str) -> Answer | None:
        """What is answered to whoever may not see numbers; None to who may."""
        if self._gate is None:
            return None
        try:
            asker = self._gate.greet(connection, path)  # type: ignore[arg-type]  # in the place of a call
            self._gate.judge(asker, path, Operation.METRICS, Kind.CLUSTER, CLUSTER_NAME)
        except NotAuthenticated as error:
            return 401, _TEXT, [f"{error}\n".encode()]
        except PermissionDenied as error:
            if principal() == ANONYMOUS:  # no words on how to allow it: those would allow everybody
                return 401, _TEXT, [b"show the certificate of a user who has the right Metrics on the cluster\n"]
            return 403, _TEXT, [f"{error}\n".encode()]
        return None

    async def _metrics(self, detail: int) -> Answer:
        seen = await self._observing.observation()
        told = self._told.get(detail)
        if told is None or told[0] is not seen:
            told = self._told[detail] = seen, asyncio.create_task(exposition(seen, detail), name="tell metrics")
        return 200, _TEXT, await asyncio.shield(told[1])

    async def _observation(self, detail: int) -> Answer:
        deadline = asyncio.get_running_loop().time() + ANSWER_S
        request = pb.ObserveRequest(detail=detail)  # type: ignore[arg-type]
        answer = await self._observing.observe(request, deadline)
        # In a thread: of 10,000 partitions it is a second's work
        return 200, "application/json", [await asyncio.to_thread(_json, answer)]


def _json(answer: pb.ObserveResponse) -> bytes:
    return MessageToJson(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True, indent=None
    ).encode()


def _of_size(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of `PIECE_BYTES` to twice as many, but for the last."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        for first in range(0, len(piece), PIECE_BYTES):
            held.append(piece[first : first + PIECE_BYTES])
            size += len(held[-1])
            if size >= PIECE_BYTES:
                yield b"".join(held)
                held.clear()
                size = 0
    yield b"".join(held)


def _detail(query: bytes) -> int | None:
    given = parse_qs(query.decode("latin-1")).get("detail", ["topic"])
    return _DETAILS.get(given[-1])


class Connection(H11Protocol):
    """One connection. To the gate it stands in the place of a call."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, {"connection": self})
        self.is_over = asyncio.Event()

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What the handshake has proved. Who shows no certificate has no name, as in plain text."""
        found = proved(self.transport)
        return found if "x509_pem_cert" in found else {"transport_security_type": [b"insecure"]}

    def peer(self) -> str:
        return peer_of(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_over.set()

    def cut(self) -> None:
        """End it now, whatever is to be written."""
        if self.transport is not None:
            self.transport.abort()


class HttpServer(Accepting):
    """The port for metrics. `tls`: what each handshake shows; None: plain text."""

    def __init__(self, listener: socket.socket, pages: Pages, tls: Tls | None) -> None:
        super().__init__(listener, "metrics connection", per_second=ACCEPTS_PER_S, strangers_max=CONNECTIONS_MAX)
        self._tls = tls
        self._state = ServerState()
        self._config = uvicorn.Config(
            pages,
            http="h11",
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # it warns of each malformed request, and strangers send as many as they like
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=16 << 10,
        )
        self._config.load()

    async def stop(self) -> None:
        """As `Accepting.stop`. What is being answered ends too."""
        await super().stop()
        answering = list(self._state.tasks)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)

    async def _serve(self, connection: socket.socket) -> None:
        held = Connection(self._config, self._state)
        try:
            async with asyncio.timeout(LIFE_S):
                await begin(held, connection, self._tls)
                await held.is_over.wait()
        except (Unreachable, TimeoutError) as error:
            log.debug("a connection for metrics has ended: %s", error)
        finally:
            held.cut()
