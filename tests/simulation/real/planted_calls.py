"""Faults to plant in the calls of clients and brokers: framing, connections, what is passed on."""

from __future__ import annotations

from tests.simulation.real.fault import Fault

CALLS = (
    Fault(
        "a message is taken for whole before its last bytes",
        "mq_protocol.wire.framing:Receiver.next",
        "if end <= self._end:",
        "if end <= self._end + 20:",
    ),
    Fault(
        "a large message begins anew with each piece of it",
        "mq_protocol.wire.framing:Receiver.received",
        "self._large_end += count",
        "self._large_end = max(self._large_end, count)",
        ("narrow",),
    ),
    Fault(
        "a connection goes on to the next call while one is under way",
        "rpc.wire.lines:Lines._give_back",
        "if connection.is_free and key[1]",
        "if key[1]",
        (),
        (("rpc.wire.lines:Lines._take", "if connection.is_free and now", "if now"),),
    ),
    Fault(
        "a client that has read what waited receives no more",
        "mq_protocol.wire.connection:Connection.read",
        "if not self._unread:\n        self._take()",
        "pass",
        ("narrow", "groups"),
    ),
    Fault(
        "a broker that has read what waited receives no more",
        "rpc.wire.streams:StreamWire._next",
        "if self._in_call:",
        "if False:",
        ("narrow", "busy"),
    ),
    Fault(
        "the first answer that is passed on is the last",
        "broker.forwarding:Forwarding._hear",
        "del answer",
        "return",
        ("groups",),
    ),
    Fault(
        "an answer is passed on without its payload",
        "rpc.service:_passing_on",
        "(answer.payload,) if answer.payload else ()",
        "()",
    ),
)
