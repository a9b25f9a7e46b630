"""Connections to a cluster of which one broker can be reached: that one passes on what is meant for others.

    Producer("gateway:7400", forward=True)

Without `forward` the environment's TRITONMQ_FORWARD counts. The client knows the cluster and follows leaders as always.
Its calls to a broker that is none of its bootstrap addresses go to one of these instead, the *entry*, and name the
broker that is meant in their metadata. All goes by gRPC.

With several bootstrap addresses there is one entry at a time, until a connection to it fails: then the next one.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final, Protocol

from mq_client.errors import InvalidSetting
from mq_protocol.transport import ERROR_METADATA, FORWARD_METADATA

VARIABLE: Final = "TRITONMQ_FORWARD"

_ON: Final = frozenset({"1", "true", "yes", "on"})
_OFF: Final = frozenset({"", "0", "false", "no", "off"})

_lock = threading.Lock()
_entries: dict[tuple[str, ...], int] = {}  # which of its addresses is the entry of such a client


def _after_fork() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Forwarded(Protocol):
    """A client, as far as this is about it (channels.py)."""

    @property
    def addresses(self) -> tuple[str, ...]: ...
    @property
    def forward(self) -> bool: ...


def given_forward(forward: bool | None) -> bool:
    """That, or what the environment says. Raises `InvalidSetting`."""
    if forward is not None:
        if not isinstance(forward, bool):
            raise InvalidSetting(f"forward={forward!r} is neither True nor False")
        return forward
    text = os.environ.get(VARIABLE, "").strip().lower()
    if text not in _ON | _OFF:
        raise InvalidSetting(f"{VARIABLE}={text!r} says neither yes nor no: write 1 or 0")
    return text in _ON


def entry(address: str, client: Forwarded) -> str:
    """What is dialled for the broker at `address`."""
    if not client.forward or address in client.addresses:
        return address
    return client.addresses[_entries.get(client.addresses, 0)]


def metadata(address: str, client: Forwarded) -> tuple[tuple[str, str], ...] | None:
    """What a call that is meant for the broker at `address` carries."""
    if not client.forward or address in client.addresses:
        return None
    return ((FORWARD_METADATA, address),)


def shown(address: str, client: Forwarded) -> str:
    """A broker's address in an error."""
    dialled = entry(address, client)
    return address if dialled == address else f"{address} (passed on by {dialled})"


def note_failure(error: Any, client: Forwarded, dialled: str) -> None:
    """A call has failed that was made at `dialled`. Unless a broker has said so, the connection has: then the next
    address is the entry."""
    if not client.forward or error.code().name != "UNAVAILABLE":
        return
    if not any(key == ERROR_METADATA for key, _ in error.trailing_metadata() or ()):
        note_unreachable(client, dialled)


def note_unreachable(client: Forwarded, dialled: str) -> None:
    """No connection to that address came about. Said twice of one, it is heard once."""
    with _lock:
        at = _entries.get(client.addresses, 0)
        if client.forward and client.addresses[at] == dialled:
            _entries[client.addresses] = (at + 1) % len(client.addresses)
