"""Who may ask for a page: the name by which the console is called, its key, and where a form comes from.

The console shows what the user who started it may see. Whatever runs in that user's browser, or on the same machine,
tries to ask it: a page of another site by a name that it points at a loopback address (DNS rebinding), a form of
another site, another user of the machine.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

QUERY_BYTES_MAX: Final = 8_192
_QUERY_FIELDS_MAX: Final = 50
_HOST: Final = re.compile(r"([0-9A-Za-z._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


class Guard:
    """Around an ASGI application. `names`: hosts by which it may be called beside addresses and `localhost`. `key`:
    what must be shown to see a page; None: nothing."""

    def __init__(self, app: App, names: Collection[str] = (), key: str | None = None, port: int = 0) -> None:
        self._app = app
        self._names = {name.lower() for name in names}
        self._key = key
        self._cookie = f"tritonmq-console-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = _headers(scope["headers"])
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        if self._key is not None and not scope["path"].startswith("/static/"):
            given = _key_of(scope["query_string"])
            if given is not None and scope["method"] == "GET" and _same(given, self._key):
                await self._let_in(scope, send)
                return
            if not self._is_let_in(headers):
                await _answer(send, 403, "open the address that `tritonmq console` has printed: it has the key")
                return
        await self._app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and reason, before anything else looks at the request."""
        if len(scope["query_string"]) > QUERY_BYTES_MAX:
            return 414, "the address is too long"
        if not scope["query_string"].isascii():  # some servers let it through, and Starlette fails of it
            return 400, "the address has bytes that have to be percent-encoded"
        if not self._is_ours(headers.get("host", "")):
            return 421, "called by an unknown name: use localhost or an address, or give the name by --host"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "give GET or POST"
        if scope["method"] == "POST" and not _is_same_origin(scope, headers):
            return 403, "a form of another site"
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether no other site can have this name: only names can be pointed at an address, addresses cannot."""
        name = _name_of(host)
        if name == "localhost" or name in self._names:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _is_let_in(self, headers: dict[str, str]) -> bool:
        assert self._key is not None
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(token.strip(), self._key):
            return True
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return found is not None and _same(found.value, session_of(self._key))

    async def _let_in(self, scope: Scope, send: Send) -> None:
        """A cookie, and the same page without the key in its address."""
        assert self._key is not None
        rest = [(name, value) for name, value in _fields(scope["query_string"]) if name != "key"]
        # Beginning with one slash: an address that begins with two names another host
        place = "/" + scope["path"].lstrip("/") + (f"?{urlencode(rest)}" if rest else "")
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{self._cookie}={session_of(self._key)}; Path=/; HttpOnly; SameSite=Strict{secure}"
        more = [(b"location", _ascii(place)), (b"set-cookie", cookie.encode())]
        await _answer(send, 303, "", more)


def session_of(key: str) -> str:
    """What a browser keeps in place of the key."""
    return hmac.new(key.encode(), b"tritonmq console session", hashlib.sha256).hexdigest()


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """By lower-case name. Of one that comes twice nothing is known: who reads the first and who the last differ."""
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1").lower()
        found[key] = "" if key in found else value.decode("latin-1")
    return found


def _fields(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError:
        return []


def _key_of(query: bytes) -> str | None:
    return next((value for name, value in _fields(query) if name == "key"), None)


def _ascii(place: str) -> bytes:
    return quote(place, safe="/?&=%+~-._:@!$'()*;,").encode()


def _name_of(host: str) -> str:
    """Without the port: `localhost:7480`, `[::1]:7480`. Empty if it is neither."""
    found = _HOST.fullmatch(host)
    return found[1].lower().removesuffix(".") if found else ""


def _is_same_origin(scope: Scope, headers: dict[str, str]) -> bool:
    """Browsers say with each form where the page is from that has it."""
    site = headers.get("sec-fetch-site", "same-origin")
    return site == "same-origin" and headers.get("origin", "") == f"{scope.get('scheme', 'http')}://{headers['host']}"


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            kept = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in known]
            if b"cache-control" not in known:
                kept.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*message["headers"], *kept]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, text: str, more: Collection[tuple[bytes, bytes]] = ()) -> None:
    body = f"{text}\n".encode() if text else b""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *more]
    sending = _with_headers(send)
    await sending({"type": "http.response.start", "status": status, "headers": headers})
    await sending({"type": "http.response.body", "body": body})
