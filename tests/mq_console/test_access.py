"""Who may ask the console for a page: names, the key, forms of other sites."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from mq_console.access import HEADERS, Guard, session_of

KEY = "k" * 22
COOKIE = "tritonmq-console-7480"


async def inside(scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


async def ask(method: str, path: str, headers: dict[str, str], **guard: Any) -> httpx.Response:
    transport = httpx.ASGITransport(Guard(inside, port=7480, **guard))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7480") as client:
        return await client.request(method, path, headers=headers)


def answer(method: str = "GET", path: str = "/", headers: dict[str, str] | None = None, **guard: Any) -> httpx.Response:
    found = asyncio.run(ask(method, path, headers or {}, **guard))
    for name, value in HEADERS.items():
        assert found.headers[name] == value
    return found


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7480", "localhost:8000", "LOCALHOST", "localhost.", "[::1]:7480", "10.1.2.3:7480", "mq.example"]
)
def test_addresses_localhost_and_given_names_may_call_it(host: str) -> None:
    assert answer(headers={"host": host}, names=["MQ.example"]).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example:7480", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::1].evil", "127.1.evil"]
)
def test_a_name_that_another_site_may_point_here_is_refused(host: str) -> None:
    assert answer(headers={"host": host}, names=["mq.example"]).status_code == 421


def test_without_a_key_everybody_may_look() -> None:
    assert answer().text == "/"


def test_the_key_is_shown_once_and_a_cookie_stands_for_it() -> None:
    assert answer(key=KEY).status_code == 403
    assert answer(path="/?key=wrong", key=KEY).status_code == 403
    let_in = answer(path=f"/topics?q=a%20b&key={KEY}", key=KEY)
    assert (let_in.status_code, let_in.headers["location"]) == (303, "/topics?q=a+b")
    cookie = let_in.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert KEY not in cookie
    assert answer(headers={"cookie": cookie.partition(";")[0]}, key=KEY).status_code == 200
    assert answer(headers={"cookie": f"{COOKIE}={session_of('other')}"}, key=KEY).status_code == 403
    assert answer(headers={"authorization": f"Bearer {KEY}"}, key=KEY).status_code == 200
    assert answer(headers={"authorization": "Bearer "}, key=KEY).status_code == 403
    assert answer(headers={"cookie": 'a="\\'}, key=KEY).status_code == 403


def test_the_way_in_leads_to_no_other_host() -> None:
    assert (
        answer(path=f"http://127.0.0.1:7480//evil.example/x?key={KEY}", key=KEY).headers["location"]
        == "/evil.example/x"
    )
    assert "\r" not in answer(path=f"/a%0d%0ax:1?key={KEY}", key=KEY).headers["location"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://127.0.0.1:7480"}, 200),
        ({"origin": "http://127.0.0.1:7480", "sec-fetch-site": "same-origin"}, 200),
        ({}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "https://127.0.0.1:7480"}, 403),
        ({"origin": "http://127.0.0.1:7481"}, 403),
        ({"origin": "http://127.0.0.1:7480", "sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_a_form_comes_from_a_page_of_this_console(headers: dict[str, str], status: int) -> None:
    assert answer("POST", "/actions/x", headers).status_code == status


def test_other_methods_and_long_addresses_are_refused() -> None:
    assert answer("DELETE").status_code == 405
    assert answer(path="/?q=" + "x" * 9_000).status_code == 414
