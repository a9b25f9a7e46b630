"""A call by the brokers' own protocol over a connection that a test reads and writes as it pleases."""

from __future__ import annotations

import time
from typing import Self

from mq_client.cluster.credentials import current
from mq_client.cluster.dialling import by_openssl, call_open, dial
from mq_protocol.errors import TritonMQError
from mq_protocol.wire.call import Kind, Said, error_of, say
from tests import switch


class Line:
    """`asked`: the first message; None: nothing is asked."""

    def __init__(self, address: str, method: str = "Produce", asked: bytes | None = None) -> None:
        client = switch.client()
        credentials = current(client.security)
        self.connection, self._machine = dial(address, client, credentials, by_openssl)
        opening = self._machine.open(call_open(method, address, client, credentials))
        said = [] if asked is None else self._machine.say(Kind.MESSAGE, asked)
        self.connection.sendall(b"".join([*opening, *said]))

    def next(self, within_s: float) -> Said | None:
        """What the broker says next; None if it has closed the connection."""
        self.connection.settimeout(within_s)
        while (message := self._machine.next()) is None:
            count = self.connection.recv_into(self._machine.buffer())
            if not count:
                return None
            self._machine.received(count, time.monotonic())
        return message

    def ended(self, within_s: float) -> TritonMQError | None:
        """Why the broker has ended the call; None if it did so without a word. Waits for it."""
        message = self.next(within_s)
        return None if message is None else error_of(message)

    def live(self) -> None:
        """Say that it lives: else it is cut off while others are opened."""
        self.connection.sendall(b"".join(say(Kind.PONG)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
