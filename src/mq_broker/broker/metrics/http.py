"""The pages of a broker for programs that watch it: /metrics, /livez, /readyz, /observation.

Raw ASGI under uvicorn, on the loop that carries the data. Both are imported only where the broker is to serve HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final
from urllib.parse import parse_qs

import uvicorn
from google.protobuf.json_format import MessageToJson

from mq_broker.broker.metrics.exposition import exposition
from mq_broker.broker.metrics.observing import Observing
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 32
KEEP_ALIVE_S: Final = 5
ANSWER_S: Final = 10.0
"""For so long an answer may be gathered."""

_DETAILS: Final = {"broker": pb.BROKER, "topic": pb.TOPICS, "partition": pb.PARTITIONS}
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
Scope = dict[str, Any]
Answer = tuple[int, str, bytes]


class Pages:
    """Owns the text that was written last, which all who ask for it soon are given. `ready`: why the broker is not to
    be sent work yet; empty if it is."""

    def __init__(self, observing: Observing, ready: Callable[[], str]) -> None:
        self._observing = observing
        self._ready = ready
        self._told: dict[int, tuple[object, asyncio.Task[bytes]]] = {}

    async def __call__(
        self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """One request, by ASGI's rules."""
        if scope["type"] != "http":
            return
        status, kind, body = await self._answer(scope)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: Scope) -> Answer:
        if scope["method"] not in ("GET", "HEAD"):
            return 405, _TEXT, b"give GET\n"
        match scope["path"]:
            case "/livez":
                return 200, _TEXT, b"ok\n"
            case "/readyz":
                why = self._ready()
                return (503, _TEXT, f"{why}\n".encode()) if why else (200, _TEXT, b"ok\n")
            case "/metrics" | "/observation" as path:
                detail = _detail(scope["query_string"])
                if detail is None:
                    return 400, _TEXT, f"detail is one of {', '.join(_DETAILS)}\n".encode()
                try:
                    async with asyncio.timeout(ANSWER_S):
                        return await (self._metrics(detail) if path == "/metrics" else self._observation(detail))
                except (TimeoutError, TritonMQError) as error:
                    return 503, _TEXT, f"{error or 'not gathered in time: ask again'}\n".encode()
            case _:
                pass
        return 404, _TEXT, b"there are /metrics, /observation, /livez and /readyz\n"

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
        text = await asyncio.to_thread(MessageToJson, answer, preserving_proto_field_name=True, indent=None)
        return 200, "application/json", text.encode()


def _detail(query: bytes) -> int | None:
    given = parse_qs(query.decode("latin-1")).get("detail", ["topic"])
    return _DETAILS.get(given[-1])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the broker's."""
        yield


class HttpServer:
    """Owns the task that serves the pages on a socket that listens."""

    def __init__(self, listening: socket.socket, pages: Pages) -> None:
        config = uvicorn.Config(
            pages,
            http="h11",
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=16 << 10,
        )
        self._server = _Server(config)
        self._listening = listening
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Serve, until `close`."""
        self._serving = asyncio.create_task(self._server.serve([self._listening]), name="http")

    async def close(self) -> None:
        """End what is being answered within a second or so."""
        if self._serving is not None:
            self._server.should_exit = True
            _, late = await asyncio.wait({self._serving}, timeout=3.0)
            if late:
                self._serving.cancel()
        self._listening.close()
