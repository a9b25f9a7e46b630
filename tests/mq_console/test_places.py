"""Who begins requests at the console and does not end them leaves room for others."""

from __future__ import annotations

import contextlib
import socket

from tests.mq_console.served import served

DEADLINE_S = 60.0
HALF = b"POST /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nhalf"


def connected(host: str, port: int, said: bytes) -> socket.socket:
    made = socket.create_connection((host, port), DEADLINE_S)
    made.sendall(said)
    return made


def test_hundreds_of_half_requests_leave_room_for_who_asks() -> None:
    with served("127.0.0.1:1") as client, contextlib.ExitStack() as stack:
        host, port = client.base_url.host, client.base_url.port or 0
        for number in range(300):
            said = HALF if number % 2 else HALF[:30]
            stack.enter_context(connected(host, port, said))
        answers = [client.get("/no-such-page", headers={"connection": "close"}).status_code for _ in range(5)]
        assert answers == [404] * 5


def test_a_request_that_is_not_whole_in_time_is_cut_off() -> None:
    with served("127.0.0.1:1") as client, contextlib.ExitStack() as stack:
        host, port = client.base_url.host, client.base_url.port or 0
        first = b"GET /no-such-page HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        half = (b"", HALF[:30], HALF, first + HALF[:30])
        for line in [stack.enter_context(connected(host, port, said)) for said in half]:
            with contextlib.suppress(ConnectionError):
                while line.recv(1 << 16):
                    pass
