"""Whose connections these are, and which address is dialled for a broker.

    Producer("gateway:7400", forward=True)

With `forward` one broker of a cluster can be reached, and passes on what is meant for others. Without the argument the
environment's TRITONMQ_FORWARD counts. The client knows the cluster and follows leaders as always. Its calls to a broker
that is none of its bootstrap addresses go to one of these instead, the *entry*, and name the broker that is meant.

With several bootstrap addresses there is one entry at a time, until it cannot be reached: then the next one.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Final

from mq_client.errors import InvalidSetting
from mq_client.security import Security

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


@dataclass(frozen=True, slots=True)
class Client:
    """Users within one process share a connection to a broker only if all of these are equal: who has another
    certificate must never speak on it. `security` None: in plain text, as nobody. `forward`: only `addresses` are
    reached, and pass on what is meant for others."""

    addresses: tuple[str, ...] = ()
    security: Security | None = None
    forward: bool = False

    def passed_on(self, address: str) -> bool:
        """Whether what is meant for the broker at `address` goes to the entry."""
        return self.forward and address not in self.addresses

    def dialled(self, address: str) -> str:
        """What is dialled for the broker at `address`."""
        return self.addresses[_entries.get(self.addresses, 0)] if self.passed_on(address) else address

    def shown(self, address: str) -> str:
        """A broker's address in an error."""
        dialled = self.dialled(address)
        return address if dialled == address else f"{address} (passed on by {dialled})"

    def note_unreachable(self, dialled: str) -> None:
        """No connection to that address came about. Said twice of one, it is heard once."""
        if not self.forward:
            return
        with _lock:
            at = _entries.get(self.addresses, 0)
            if self.addresses[at] == dialled:
                _entries[self.addresses] = (at + 1) % len(self.addresses)


NOBODY: Final = Client()
"""Who asks a single broker, of no cluster in particular."""


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
