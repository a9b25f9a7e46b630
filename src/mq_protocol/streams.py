"""What clients and a broker's stream port say to each other: calls of the service Broker without gRPC. Pure.

A connection carries one call after another, never two at once. Each message is framed as in framing.py, after the
preamble `STREAM`. The first byte of its header is its kind:

    OPEN      the client begins a call: `StreamOpen`
    MESSAGE   a request or an answer of the method: the same message that gRPC carries. Of one with a header and a
              payload the header stands here and the payload is the frame's
    END       the client has said its last; the broker has answered its last, and the connection is free for another
              call
    ERROR     the broker ends the call: `Error`. The connection ends with it, unless the call had a single request: then
              it is free for another one
    PING      is answered by PONG, several that come together by one. Whoever has heard nothing for `PING_S` sends it,
              and takes `SILENCE_S` without a word for the end. A call with a deadline (`StreamOpen.timeout_ms`) has
              none
    PONG      also without a PING, every few seconds, while the broker reads nothing of a call: its client is above a
              quota, or the broker has no memory for more. It lives, and a PING would wait with what it does not read

What is said here is judged as what is said by gRPC is: the same names, rights, quotas and bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from mq_protocol.envelope import Buffer, Envelope
from mq_protocol.errors import InvalidRequest
from mq_protocol.framing import STREAM, Message, encode, preamble

M = TypeVar("M", bound=Protobuf)


class Kind(IntEnum):
    """The first byte of each header."""

    OPEN = 1
    MESSAGE = 2
    END = 3
    ERROR = 4
    PING = 5
    PONG = 6


OPEN_BYTES_MAX: Final = 1 << 10
"""Of the first message of a connection: before it nobody is known."""

KIND_BYTES: Final = 1

PING_S: Final = 10.0
SILENCE_S: Final = 15.0
"""As gRPC's keepalive (transport.py)."""

PREAMBLE: Final = preamble(spoken=STREAM)

_KINDS: Final = {int(kind): kind for kind in Kind}
_BYTES: Final = {kind: bytes([kind]) for kind in Kind}


class Said(NamedTuple):
    """One message. `body`: serialized protobuf. `payload`: as `framing.Message`."""

    kind: Kind
    body: bytes
    payload: memoryview

    @property
    def nbytes(self) -> int:
        return len(self.body) + len(self.payload)


def said(message: Message) -> Said:
    """Raises `InvalidRequest` for a kind that there is not."""
    kind = _KINDS.get(message.header[0])
    if kind is None:
        raise InvalidRequest(f"a message of kind {message.header[0]}: this end knows {min(Kind)} to {max(Kind)}")
    return Said(kind, message.header[KIND_BYTES:], message.payload)


def say(kind: Kind, body: bytes = b"", parts: Sequence[Buffer] = ()) -> list[Buffer]:
    """The message as pieces to send. The parts of the payload are not copied."""
    return encode(_BYTES[kind] + body, parts)


def say_envelope(envelope: Envelope[Any]) -> list[Buffer]:
    """A message with a header and a payload."""
    return say(Kind.MESSAGE, envelope.header.SerializeToString(), envelope.parts)


def parsed(body: bytes, kind: type[M]) -> M:
    """Raises `InvalidRequest` for bytes that are no such message."""
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise InvalidRequest(f"malformed {kind.__name__}: {error}; speak protobuf as in mq.proto") from error
    return message
