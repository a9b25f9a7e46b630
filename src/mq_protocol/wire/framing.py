"""Messages on a byte stream, TCP or TLS: what is sent before each, and how they are found again. Pure: bytes in,
messages out.

Each end first sends its preamble, which says what it speaks:

    6 bytes   what is spoken: `LINK`, or `STREAM` (streams.py)
    1 byte    the newest version of this format that it speaks
    1 byte    the oldest

Then come messages, each a protobuf header and a payload that no protobuf has seen:

    4 bytes   size of the header, big-endian
    4 bytes   size of the payload, big-endian
    the header
    the payload

`Receiver` says into which memory the next bytes are to be received. A message that is large is received into memory of
its own size, so that nothing copies it. Small ones are received together and copied out. No memory is taken for a
message that is above the bound, and the bound may be changed from one message to the next.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from mq_protocol.errors import IncompatibleVersion, InvalidRequest, RequestTooLarge
from mq_protocol.wire.envelope import Buffer

LINK: Final = b"\x93TMQ\r\n"
STREAM: Final = b"\x93TMS\r\n"
VERSION: Final = 1
VERSION_OLDEST: Final = 1

_PREAMBLE: Final = struct.Struct(">6sBB")
_SIZES: Final = struct.Struct(">II")
SIZES_BYTES: Final = _SIZES.size

GATHER_BYTES: Final = 64 << 10
"""What is received at once of small messages."""

LARGE_BYTES: Final = GATHER_BYTES // 2
"""From this size on a message has memory of its own."""

_NAMES: Final = {LINK: "link", STREAM: "stream"}
_EMPTY: Final = memoryview(b"")
_UNTOUCHED: Final = pa.system_memory_pool()


class Message(NamedTuple):
    """`header`: serialized protobuf. `payload`: read-only memory that nobody else writes to; views of it may be
    kept."""

    header: bytes
    payload: memoryview


def preamble(newest: int = VERSION, oldest: int = VERSION_OLDEST, *, spoken: bytes = LINK) -> bytes:
    """What is sent before the first message."""
    return _PREAMBLE.pack(spoken, newest, oldest)


PREAMBLE_BYTES: Final = _PREAMBLE.size


def version_of(data: Buffer, *, spoken: bytes = LINK) -> int:
    """The version that both ends speak, given the other end's preamble. Raises `InvalidRequest` for other bytes,
    `IncompatibleVersion` if there is none."""
    magic, newest, oldest = _PREAMBLE.unpack_from(data)
    what = _NAMES[spoken]
    if magic != spoken:
        raise InvalidRequest(f"the far side does not begin as a {what} does: it is no {what} port of a broker")
    if not 0 < oldest <= newest:
        raise InvalidRequest(f"a {what} of versions {oldest} to {newest}: there is none")
    chosen = min(newest, VERSION)
    if chosen < max(oldest, VERSION_OLDEST):
        raise IncompatibleVersion(
            f"one end speaks versions {VERSION_OLDEST} to {VERSION} of {what}s, the other one {oldest} to {newest}: "
            "upgrade the one with the lower ones"
        )
    return int(chosen)


def encode(header: bytes, parts: Sequence[Buffer] = ()) -> list[Buffer]:
    """The message as pieces to send one after another. The parts of the payload are not copied."""
    if not header:
        raise ValueError("a message has a header")
    payload_bytes = sum(len(part) if type(part) is bytes else memoryview(part).nbytes for part in parts)
    return [_SIZES.pack(len(header), payload_bytes) + header, *parts]


class Receiver:
    """Owns the memory into which one connection's bytes are received.

    Receive up to `len(buffer())` bytes into `buffer()`, tell `received` how many, then take messages with `next` until
    there is none. `header_bytes_max` and `message_bytes_max` (header and payload together) hold for messages that
    `next` has not looked at; set them whenever what is to come may be larger. After an error nothing more can be taken.
    """

    def __init__(self, header_bytes_max: int, message_bytes_max: int, *, spoken: bytes = LINK) -> None:
        self.header_bytes_max = header_bytes_max
        self._spoken = spoken
        self.message_bytes_max = message_bytes_max
        self.version = 0
        """What both ends speak; 0 before the preamble is there."""
        self._gathered = memoryview(bytearray(GATHER_BYTES))
        self._start = 0
        self._end = 0
        # The large message that is on its way: its memory, how much is there, and how much of it is the header
        self._large: memoryview | None = None
        self._large_end = 0
        self._large_header = 0

    def buffer(self) -> memoryview:
        """Where the next bytes belong: one byte at least. Take all messages before."""
        if self._large is not None:
            return self._large[self._large_end :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end > LARGE_BYTES:
            # What is not whole is smaller than LARGE_BYTES: the rest of it fits behind
            rest = bytes(self._gathered[self._start : self._end])
            self._start, self._end = 0, len(rest)
            self._gathered[: self._end] = rest
        return self._gathered[self._end :]

    @property
    def is_empty(self) -> bool:
        """Whether all that was received was taken."""
        return self._large is None and self._start == self._end

    @property
    def is_large(self) -> bool:
        """Whether `buffer()` is the rest of one message, and nothing else."""
        return self._large is not None

    def drop(self) -> None:
        """Let go of what has come of a message that is not whole, and of all that was not taken."""
        self._large = None
        self._start = self._end = 0

    def received(self, count: int) -> None:
        """So many bytes have been received into `buffer()`."""
        if self._large is not None:
            self._large_end += count
        else:
            self._end += count

    def next(self) -> Message | None:
        """The next message that is whole. Raises `InvalidRequest`, `IncompatibleVersion`, or `RequestTooLarge` for one
        above the bounds."""
        if self._large is not None:
            return self._take_large()
        if self.version == 0 and not self._take_preamble():
            return None
        there = self._end - self._start
        if there < SIZES_BYTES:
            return None
        header_bytes, payload_bytes = _SIZES.unpack_from(self._gathered, self._start)
        self._check(header_bytes, payload_bytes)
        begin = self._start + SIZES_BYTES
        end = begin + header_bytes + payload_bytes
        if end <= self._end:
            payload_at = begin + header_bytes
            self._start = end
            header = bytes(self._gathered[begin:payload_at])
            return Message(header, memoryview(bytes(self._gathered[payload_at:end])) if payload_bytes else _EMPTY)
        if SIZES_BYTES + header_bytes + payload_bytes >= LARGE_BYTES:
            # Not zeroed: who says that much will come, and sends nothing, has no memory that was touched
            self._large = memoryview(pa.allocate_buffer(header_bytes + payload_bytes, _UNTOUCHED)).cast("B")
            self._large_end, self._large_header = self._end - begin, header_bytes
            self._large[: self._large_end] = self._gathered[begin : self._end]
            self._start = self._end = 0
        return None

    def _take_preamble(self) -> bool:
        if self._end - self._start < PREAMBLE_BYTES:
            return False
        self.version = version_of(self._gathered[self._start : self._end], spoken=self._spoken)
        self._start += PREAMBLE_BYTES
        return True

    def _take_large(self) -> Message | None:
        large = self._large
        if large is None or self._large_end < len(large):
            return None
        self._large = None
        return Message(bytes(large[: self._large_header]), large[self._large_header :].toreadonly())

    def _check(self, header_bytes: int, payload_bytes: int) -> None:
        if not header_bytes:
            raise InvalidRequest("a message without a header")
        if header_bytes > self.header_bytes_max or header_bytes + payload_bytes > self.message_bytes_max:
            raise RequestTooLarge(
                f"a message with a header of {header_bytes} bytes and a payload of {payload_bytes} is above "
                f"{self.header_bytes_max} and {self.message_bytes_max} together"
            )
