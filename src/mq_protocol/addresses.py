"""What `HOST:PORT` may be, wherever it is read: an option, or what a broker has registered."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final

from mq_protocol.errors import InvalidSetting
from mq_protocol.names import quoted

_HOST: Final = re.compile(r"[0-9A-Za-z_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}(%[0-9A-Za-z_.-]{1,32})?\]")
_PORT: Final = re.compile("[0-9]{1,5}")
_SCHEMES: Final = frozenset({"unix", "unix-abstract", "vsock", "dns", "ipv4", "ipv6", "xds"})
"""Before a colon these are no host to gRPC: `unix:7400` is a file."""


def parse_address(text: str) -> tuple[str, int]:
    """The host and the port, 0 to 65535. An IPv6 address is in brackets, and stays in them. Raises `InvalidSetting`."""
    host, _, port = text.rpartition(":")
    if not _HOST.fullmatch(host) or host.lower() in _SCHEMES or not _PORT.fullmatch(port) or int(port) > 65535:
        raise InvalidSetting(f"{quoted(text)} is not HOST:PORT: give e.g. localhost:7400")
    return host, int(port)


_IPV6_PREFIX: Final = 64
"""One machine has all addresses of such a network."""


def origin(address: str) -> str:
    """From where somebody comes: an address of IPv4, or a network of IPv6, of which one machine has all addresses."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found, _IPV6_PREFIX), strict=False))


ANY_ADDRESS: Final = frozenset({"0.0.0.0", "[::]", "::", ""})  # noqa: S104 - compared with, not bound to
"""Bound to these, every address of the machine is."""


def is_loopback(host: str) -> bool:
    """Whether no other machine reaches what is bound to it. A name counts if all of its addresses do."""
    if host in ANY_ADDRESS:
        return False
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        pass
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False  # binding to it will fail, and say so
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)
