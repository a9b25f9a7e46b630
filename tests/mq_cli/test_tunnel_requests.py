"""What the tunnel of `tritonmq proxy` makes of a request, and of where it comes from."""

from __future__ import annotations

import asyncio
import socket

import pytest

from mq_cli.tunnel import HEAD_BYTES_MAX, Addresses, Bounds, Refusal, Tunnel, compared, wanted
from mq_client.cluster.connection import Connection
from mq_client.errors import InvalidSetting

NOBODY = "127.0.0.1:1"


class Named(asyncio.Transport):
    """Comes from an address that this machine does not have."""

    def __init__(self, peer: str) -> None:
        super().__init__({"peername": (peer, 1, 0, 0), "socket": socket.socket()})

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.get_extra_info("socket").settimeout(None)

    def abort(self) -> None:
        self.get_extra_info("socket").close()


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"", None),
        (b"CONN", None),
        (b"CONNECT b.example:7400 HTTP/1.1\r\nHost: b.example:7400\r\n", None),
        (b"CONNECT B.Example:7400 HTTP/1.1\r\n\r\n", "b.example:7400"),
        (b"CONNECT b:7400 HTTP/1.0\r\nany: thing\r\n\r\nrest", "b:7400"),
        (b"CONNECT [::1]:7400 HTTP/1.1\r\n\r\n", "[::1]:7400"),
        (b"CONNECT b:07400 HTTP/1.1\r\n\r\n", "b:7400"),
        (b"CONNECT b HTTP/1.1\r\n\r\n", Refusal.BAD),
        (b"CONNECT b:99999 HTTP/1.1\r\n\r\n", Refusal.BAD),
        (b"CONNECT unix:1 HTTP/1.1\r\n\r\n", Refusal.BAD),
        (b"CONNECT http://b:1/ HTTP/1.1\r\n\r\n", Refusal.BAD),
        (b"CONNECT b:1  HTTP/1.1\r\n\r\n", Refusal.BAD),
        (b"CONNECT b:1\r\n\r\n", Refusal.BAD),
        (b"CONNECT \xff\xfe:1 HTTP/1.1\r\n\r\n", Refusal.BAD),
        (b"GET / HTTP/1.1\r\n", None),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", Refusal.METHOD),
        (b"PRI * HTTP/2.0\r\n\r\n", Refusal.METHOD),  # a client without via
        (b"\x16\x03\x01\x02\x00", Refusal.BAD),  # TLS
        (b"hello", Refusal.BAD),
        (b"CONNECT " + b"x" * HEAD_BYTES_MAX, Refusal.LONG),
        (b"GET " + b"x" * HEAD_BYTES_MAX, Refusal.LONG),
    ],
    ids=lambda each: None if isinstance(each, Refusal) else repr(each)[:60],
)
def test_what_a_request_wants(head: bytes, found: object) -> None:
    assert wanted(head) == found


def test_addresses_are_compared_in_one_form() -> None:
    assert compared("B.Example:007") == "b.example:7"
    with pytest.raises(InvalidSetting):
        compared("b")


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    async def test() -> None:
        addresses = Addresses(Connection(NOBODY, via="", from_environment=False))
        tunnel = Tunnel(addresses, Bounds(10, 1))
        guests = [tunnel.guest() for _ in range(2)]
        for guest, peer in zip(guests, ("2001:db8::1", "2001:db8::2"), strict=True):
            guest.connection_made(Named(peer))
            tunnel.said(guest)
        refused = await tunnel.connect(guests[1], NOBODY)
        for guest in guests:
            guest.transport.abort()
            guest.connection_lost(None)
        addresses.close()
        assert [guest.host for guest in guests] == ["2001:db8::/64"] * 2
        assert refused is Refusal.FULL

    asyncio.run(test())
