"""Requests to the console, altered, as a browser, a page of another site or another user of the machine may send them:
through the guard, to a console with actions whose cluster does not answer."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import MutableMapping
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import quote, unquote

from mq_client import BrokerObservation, ClusterObservation, GroupObservation, PartitionObservation
from mq_console.access import HEADERS, Guard
from mq_console.actions import ACTIONS
from mq_console.serving import Console
from mq_console.views import Settings
from mq_console.watching import Watcher
from mq_console.web import PAGES
from mq_protocol.errors import Unreachable
from tests.fuzz.altering import TEXTS, altered

_SEPARATOR: Final = b"\x00"
_KEY: Final = "key-of-a-console"
_STATUSES: Final = frozenset({200, 303, 307, 400, 403, 404, 405, 413, 414, 421, 503})
_ELEMENT: Final = "x-fuzz"
_HARM: Final = (
    f"<{_ELEMENT}>",
    f'"><{_ELEMENT} onload=1>',
    f"'><{_ELEMENT}>",
    "</script>",
    "javascript:1",
    "{{1111111*9}}",
)
_PARTITION: Final = PartitionObservation("t", 0, 1, True, 1, 1, (1,), (1,), (), 0, 5, 5, 0, 0, 0)


def _observed(_detail: str) -> ClusterObservation:
    broker = BrokerObservation(1, "b1:1", 1, "v", "serving", "connected", 1, {}, {})
    partitions = tuple(replace(_PARTITION, topic=name) for name in ("t", _HARM[0]))
    groups = (GroupObservation("g", "t", "spark", 1, 1, 2, 3, 1),)
    return ClusterObservation("c", (broker,), (), partitions, groups)


class _Away:
    """A cluster of which only the watcher has heard."""

    def __getattr__(self, _question: str) -> Any:
        def ask(*_: Any, **__: Any) -> None:
            raise Unreachable(f"no broker answers {_HARM[1]}")

        return ask


def _console() -> Console:
    made = Console("127.0.0.1:1", Settings(actions=True))
    made.close()
    made.watcher = made.views.watcher = Watcher(_observed)
    made.views.admin = made.views._reader = _Away()  # type: ignore[assignment]
    made.watcher.look()
    made.watcher._first.set()
    return made


_console_of_all: Final = _console()
_open: Final = Guard(_console_of_all)
_locked: Final = Guard(_console_of_all, key=_KEY)
_loop: Final = asyncio.new_event_loop()
_HEADERS: Final = ("host", "origin", "cookie", "authorization")
_PARTS: Final = ("method", "path", "query", *_HEADERS, "body")
_TOKEN: Final = b"TOKEN"
"""Stands in an input for what the console's own forms carry, which no two consoles have in common."""


def _word(chance: random.Random) -> str:
    return quote(chance.choice((*TEXTS, *_HARM, "t", "g", "1", "-records", "100")).encode(), safe="")


def _pairs(chance: random.Random, names: tuple[str, ...]) -> str:
    return "&".join(f"{chance.choice(names)}={_word(chance)}" for _ in range(chance.choice((0, 1, 1, 2, 4))))


def generate(chance: random.Random) -> bytes:
    path = chance.choice(list(PAGES)).replace("{name}", _word(chance))
    if chance.random() < 0.2:
        path = f"/api/v1{path}"
    if chance.random() < 0.4:
        path = f"/actions/{chance.choice(list(ACTIONS))}"
    fields = tuple(field.name for action in ACTIONS.values() for field in action.fields)
    parts = {
        "method": chance.choice(("GET", "GET", "GET", "POST", "POST", "HEAD", "PUT")),
        "path": path,
        "query": _pairs(chance, ("q", "sort", "page", "partition", "at", "key", *fields)),
        "host": chance.choice(("localhost", "127.0.0.1:7480", "[::1]:7480", "evil.example", "")),
        "cookie": chance.choice(("", f"tritonmq-console-0={_word(chance)}", "=;=", "a=b; tritonmq-console-0=x")),
        "authorization": chance.choice(("", f"Bearer {_KEY}", f"bearer {_word(chance)}")),
        "body": _pairs(chance, ("token", "confirm", *fields)) + f"&token={_TOKEN.decode()}",
    }
    parts["origin"] = chance.choice((f"http://{parts['host']}", "http://evil.example", ""))
    data = _SEPARATOR.join(parts[name].encode() for name in _PARTS)
    return altered(data, chance, 3) if chance.random() < 0.3 else data


def check(data: bytes) -> bool:
    parts = data.split(_SEPARATOR)
    if len(parts) != len(_PARTS):
        return False
    given = dict(zip(_PARTS, parts, strict=True))
    given["body"] = given["body"].replace(_TOKEN, _token)
    guard = _locked if given["authorization"] else _open
    status, headers, body = _loop.run_until_complete(_asked(guard, given))
    assert status in _STATUSES, status
    assert headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert not any("\n" in value or "\r" in value for value in headers.values())
    if status == 307:  # to the same address without a slash at its end
        assert headers["location"].startswith(f"http://{given['host'].decode('latin-1')}/")
    if status == 303:
        assert headers["location"].startswith("/")
        assert not headers["location"].startswith("//")
    _check_body(headers.get("content-type", ""), body)
    return status in (200, 303, 307)


def _of_forms() -> bytes:
    """What the console's forms carry."""
    form = {"method": b"GET", "path": f"/actions/{next(iter(ACTIONS))}".encode(), "host": b"localhost"}
    _, _, body = _loop.run_until_complete(_asked(_open, {name: form.get(name, b"") for name in _PARTS}))
    found = re.search(rb'name="token" value="([0-9a-f]{64})"', body)
    assert found is not None
    return found[1]


async def _asked(guard: Guard, given: dict[str, bytes]) -> tuple[int, dict[str, str], bytes]:
    path = given["path"].partition(b"?")[0]
    scope: MutableMapping[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": given["method"].decode("latin-1"),
        "scheme": "http",
        "path": unquote(path.decode("latin-1")),
        "raw_path": path,
        "root_path": "",
        "query_string": given["query"],
        "headers": [(name.encode(), given[name]) for name in _HEADERS if given[name]],
        "server": ("127.0.0.1", 7480),
        "client": ("127.0.0.1", 1),
    }
    sent: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": given["body"], "more_body": False}]

    async def receive() -> dict[str, Any]:
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await guard(scope, receive, send)
    begun = sent[0]
    headers = {name.decode().lower(): value.decode("latin-1") for name, value in begun["headers"]}
    return begun["status"], headers, b"".join(message.get("body", b"") for message in sent[1:])


class _Elements(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != _ELEMENT, "what was asked has become an element"
        for name, value in attrs:
            assert not name.startswith("on"), name
            if name in ("href", "src", "action"):
                assert (value or "/").startswith(("/", "?", "#")), value
                assert not (value or "").startswith("//"), value


def _check_body(kind: str, body: bytes) -> None:
    if kind.startswith("text/html"):
        _Elements().feed(body.decode())
        assert b"9999999" not in body, "what was asked has become a template"
    elif kind.startswith("application/json"):
        assert not set(b"<>&") & set(body)
    else:
        assert not body or kind.startswith(("text/plain", "text/css", "text/javascript", "image/"))


_token: Final = _of_forms()
