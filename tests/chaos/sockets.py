"""Which process has the other end of a connection on this machine. Linux: asks the kernel for that one socket, then
looks at fds.

Reading the table of all connections would do as well, and take longer than gRPC waits for a connection on a machine
with many.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Mapping
from typing import Final

_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_ASKED: Final = struct.Struct("=BBBxI")
_PORTS: Final = struct.Struct("!HH")
_ANY_COOKIE: Final = b"\xff" * 8
_INODE_AT: Final = _HEADER.size + 4 + 48 + 4 * 4
"""In the answer: behind netlink's header, four bytes of state, the socket's id, and four counters."""

_TIMEOUT_S: Final = 1.0


def inode_of(port: int, peer_port: int, host: str = "127.0.0.1") -> int:
    """Of the TCP socket bound to `port` that is connected to `peer_port`, both on `host`; 0 if there is none."""
    address = socket.inet_aton(host).ljust(16, b"\0")
    socket_id = _PORTS.pack(port, peer_port) + address + address + struct.pack("=I", 0) + _ANY_COOKIE
    asked = _ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + socket_id
    header = _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(header + asked)
        answer = kernel.recv(4096)
    _, kind, *_ = _HEADER.unpack_from(answer)
    if kind != _SOCK_DIAG_BY_FAMILY:
        return 0
    inode: int = struct.unpack_from("=I", answer, _INODE_AT)[0]
    return inode


def owner(inode: int, processes: Mapping[str, int | None]) -> str | None:
    """The name of the process that has that socket open; None if none of them has."""
    wanted = f"socket:[{inode}]"
    for name, pid in processes.items():
        if pid is None or not inode:
            continue
        with contextlib.suppress(OSError):  # it has just ended
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # it has just closed that one
                    if os.readlink(f"/proc/{pid}/fd/{number}") == wanted:
                        return name
    return None
