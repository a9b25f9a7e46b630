"""What clients and brokers say to each other on a connection, and the state of the call that is under way. Pure: bytes
in, messages out; messages in, bytes out.

A connection carries one call after another, never two at once. Each message is framed as in framing.py, after the
preamble `STREAM`. The first byte of its header is its kind:

    OPEN      the client begins a call: `CallOpen`
    MESSAGE   a request or an answer of the method. Of one with a header and a payload the header stands here and the
              payload is the frame's
    END       the client has said its last; the broker has answered its last, and the connection is free for another
              call
    ERROR     the broker ends the call: `Error`. The client has said its last, and the connection is free
    CLOSE     the broker ends the call, and the connection with it: `Error`. Nothing, where no call is under way
    PING      is answered by PONG, several that come together by one. Whoever has heard nothing for `PING_S` sends it,
              and takes `SILENCE_S` without a word for the end. A call with a deadline (`CallOpen.timeout_ms`) has none
    PONG      also without a PING, every few seconds, while an end reads nothing of a call: a client is above a quota,
              or somewhere there is no memory for more. It lives, and a PING would wait with what it does not read

`CallMachine` is one end of a connection. Adapters drive it: the broker's port, a client on an event loop, a client in a
thread, a client that waits. They own the socket and the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, TritonMQError, Unreachable
from mq_protocol.wire.envelope import Buffer
from mq_protocol.wire.error_messages import from_wire, to_wire
from mq_protocol.wire.framing import STREAM, Message, Receiver, encode, preamble

M = TypeVar("M", bound=Protobuf)


class Kind(IntEnum):
    """The first byte of each header."""

    OPEN = 1
    MESSAGE = 2
    END = 3
    ERROR = 4
    CLOSE = 5
    PING = 6
    PONG = 7


class State(Enum):
    """Of the call on a connection, as both ends know it once all that was said is heard."""

    IDLE = "no call is under way"
    OPEN = "both may speak"
    HALF_CLOSED = "the client has said its last"
    ENDED = "the connection is over"


class Side(Enum):
    CLIENT = "client"
    BROKER = "broker"


_SAYS: Final = {
    Side.CLIENT: {
        (State.IDLE, Kind.OPEN): State.OPEN,
        (State.OPEN, Kind.MESSAGE): State.OPEN,
        (State.OPEN, Kind.END): State.HALF_CLOSED,
    },
    Side.BROKER: {
        (State.OPEN, Kind.MESSAGE): State.OPEN,
        (State.HALF_CLOSED, Kind.MESSAGE): State.HALF_CLOSED,
        (State.HALF_CLOSED, Kind.END): State.IDLE,
        (State.HALF_CLOSED, Kind.ERROR): State.IDLE,
        (State.IDLE, Kind.CLOSE): State.ENDED,
        (State.OPEN, Kind.CLOSE): State.ENDED,
        (State.HALF_CLOSED, Kind.CLOSE): State.ENDED,
    },
}
"""What each side may say in which state, and the state after it. PING and PONG may be said in any."""

OPEN_BYTES_MAX: Final = 32 << 10
"""Of the message that opens a call, which carries a token or a proof. Before it nobody is known."""

KIND_BYTES: Final = 1

PING_S: Final = 10.0
SILENCE_S: Final = 15.0
"""A machine that vanished, and a process that is stopped, are noticed after that."""

GREETING_S: Final = 5.0
"""How long a connection with its handshake of TLS may take until the far side's first word: many may be made at
once."""

LOOK_S: Final = 2.5
"""How often an adapter on a loop calls `look`."""

BEATS_MAX: Final = 100
"""PING and PONG within two looks. One is enough for ten seconds."""

PREAMBLE: Final = preamble(spoken=STREAM)

_BEATS: Final = (Kind.PING, Kind.PONG)
_KINDS: Final = {int(kind): kind for kind in Kind}
_BYTES: Final = {kind: bytes([kind]) for kind in Kind}


class NotBegun(Unreachable):
    """The broker has ended the connection, and no call was under way for it: what was asked meanwhile it has not
    begun."""


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


def parsed(body: bytes, kind: type[M]) -> M:
    """Raises `InvalidRequest` for bytes that are no such message."""
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise InvalidRequest(f"malformed {kind.__name__}: {error}; speak protobuf as in mq.proto") from error
    return message


class CallMachine:
    """Owns the state of one end of a connection, and the memory into which it receives.

    Receive into `buffer()`, tell `received`, take messages with `next` until there is none, and send what `answer`
    gives. What is sent comes from `say`. All times are seconds of one clock that never goes back.
    """

    def __init__(self, side: Side, bytes_max: int, now: float) -> None:
        self._receiver = Receiver(bytes_max, bytes_max, spoken=STREAM)
        self._says = _SAYS[side]
        self._hears = _SAYS[Side.CLIENT if side is Side.BROKER else Side.BROKER]
        self.state = State.IDLE
        self._heard_at = now
        self._owes_pong = False
        self._beats = 0

    # ------------------------------------------------------------------ what is received

    def bound(self, header_bytes_max: int, message_bytes_max: int) -> None:
        """Of messages that `next` has not looked at."""
        self._receiver.header_bytes_max = header_bytes_max + KIND_BYTES
        self._receiver.message_bytes_max = message_bytes_max + KIND_BYTES

    @property
    def is_greeted(self) -> bool:
        """The far side has begun as one that speaks this."""
        return self._receiver.version != 0

    @property
    def is_empty(self) -> bool:
        """All that was received was taken."""
        return self._receiver.is_empty

    @property
    def missing_bytes(self) -> int:
        """How much of a large message is to come, which has memory of its own; 0 if there is none on its way."""
        return len(self._receiver.buffer()) if self._receiver.is_large else 0

    def buffer(self) -> memoryview:
        """Where the next bytes belong."""
        return self._receiver.buffer()

    def received(self, count: int, now: float) -> None:
        """So many bytes have been received into `buffer()`."""
        self._receiver.received(count)
        self._heard_at = now

    def next(self) -> Said | None:
        """The next message that is whole: OPEN, MESSAGE, END, ERROR or CLOSE. Raises `InvalidRequest`,
        `IncompatibleVersion` or `RequestTooLarge` for what may not be said, or not now; nothing can be taken then."""
        while (found := self._receiver.next()) is not None:
            message = said(found)
            if message.kind in (*_BEATS, Kind.END) and message.nbytes:
                raise InvalidRequest(f"{message.kind.name} says nothing more, and {message.nbytes} bytes came with it")
            if message.kind in _BEATS:
                self._count_beat(message.kind)
                continue
            state = self._hears.get((self.state, message.kind))
            if state is None:
                raise InvalidRequest(f"{message.kind.name} cannot be said now: {self.state.value}")
            self.state = state
            return message
        return None

    def drop(self) -> None:
        """Let go of all that was received and not taken."""
        self._receiver.drop()

    # ------------------------------------------------------------------ what is sent

    def say(self, kind: Kind, body: bytes = b"", parts: Sequence[Buffer] = ()) -> list[Buffer]:
        """The pieces to send. Raises `ValueError` for what may not be said in this state."""
        state = self._says.get((self.state, kind))
        if state is None:
            raise ValueError(f"{kind.name} cannot be said now: {self.state.value}")
        self.state = state
        return say(kind, body, parts)

    def open(self, opened: pb.CallOpen) -> list[Buffer]:
        """A call begins."""
        return self.say(Kind.OPEN, opened.SerializeToString())

    def fail(self, error: TritonMQError) -> list[Buffer]:
        """The call has failed, and the connection is free for another one."""
        return self.say(Kind.ERROR, to_wire(error).SerializeToString())

    def close(self, error: TritonMQError | None) -> list[Buffer]:
        """The connection ends, with why the call does if one is under way."""
        return self.say(Kind.CLOSE, b"" if error is None else to_wire(error).SerializeToString())

    def answer(self) -> list[Buffer]:
        """What is owed for a PING that was heard; nothing if none was."""
        owed, self._owes_pong = self._owes_pong, False
        return say(Kind.PONG) if owed else []

    # ------------------------------------------------------------------ whether the far side lives

    def goes_on(self, now: float) -> None:
        """Nothing was received for a while because this end did not read. It does again."""
        self._heard_at = now

    def look(self, now: float, *, reads: bool, grace_s: float = 0.0) -> list[Buffer]:
        """What to send now to learn whether the far side lives, or to show that this one does. `reads`: this end
        receives. Raises `Unreachable` once the far side has been silent for `SILENCE_S`, and `grace_s` more."""
        self._beats = 0
        if not reads:
            return say(Kind.PONG)
        silent_s = now - self._heard_at
        if silent_s >= SILENCE_S + grace_s:
            raise Unreachable(f"it has said nothing for {SILENCE_S:.0f} s")
        return say(Kind.PING) if silent_s >= PING_S else []

    def _count_beat(self, kind: Kind) -> None:
        self._owes_pong = self._owes_pong or kind is Kind.PING
        self._beats += 1
        if self._beats > BEATS_MAX:
            raise InvalidRequest(f"more than {BEATS_MAX} PING and PONG within seconds: ask once in {PING_S:.0f} s")


def error_of(message: Said) -> TritonMQError | None:
    """Why the broker has ended the call, if this message says so."""
    if message.kind not in (Kind.ERROR, Kind.CLOSE):
        return None
    if not message.body:
        return NotBegun("the broker has ended the connection")
    return from_wire(parsed(message.body, pb.Error))
