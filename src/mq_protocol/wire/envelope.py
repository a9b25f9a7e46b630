"""Messages of the form `{Header header = 1; bytes payload = 2;}`, written and read without copying the payload twice.

protobuf copies a `bytes` field when it is set and again when it is serialised, and once more when it is parsed. Here
the header alone goes through protobuf; the payload is joined to it on the way out and is a view of the received message
on the way in. The bytes are those that protobuf itself would write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from mq_protocol.errors import InvalidRequest, RequestTooLarge

Buffer: TypeAlias = bytes | bytearray | memoryview

_HEADER_TAG = b"\x0a"  # field 1, length-delimited
_PAYLOAD_TAG = b"\x12"  # field 2, length-delimited


class Header(Protocol):
    """A generated protobuf message."""

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...  # noqa: N802 (protobuf's name)
    def ParseFromString(self, serialized: bytes, /) -> int: ...  # noqa: N802 (protobuf's name)


H = TypeVar("H", bound=Header)


class Envelope(NamedTuple, Generic[H]):
    """A header and its payload, given as parts that are joined on the wire (no need to join them before)."""

    header: H
    parts: tuple[Buffer, ...] = ()

    @property
    def payload(self) -> memoryview:
        """The payload in one piece: no copy where it came as one part."""
        if len(self.parts) == 1:
            return memoryview(self.parts[0])
        return memoryview(b"".join(self.parts))


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 35:
            raise InvalidRequest("malformed message: a length runs past the end; speak protobuf as in mq.proto")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def encode(envelope: Envelope[H]) -> bytes:
    """The wire bytes: one copy of the payload."""
    return joined(envelope.header.SerializeToString(), envelope.parts)


def joined(header: bytes, parts: Iterable[Buffer]) -> bytes:
    """The same of a header that is serialized."""
    pieces: list[Buffer] = [_HEADER_TAG, varint(len(header)), header]
    length = sum(len(part) if isinstance(part, bytes) else memoryview(part).nbytes for part in parts)
    if length:
        pieces += [_PAYLOAD_TAG, varint(length)]
        pieces += parts
    return b"".join(pieces)


def decode(data: bytes, header_type: type[H], header_bytes_max: int | None = None) -> Envelope[H]:
    """The envelope whose payload is a view of `data`. Raises as `halves`."""
    said, payload = halves(data, header_bytes_max)
    header = header_type()
    try:
        header.ParseFromString(said)
    except Exception as error:  # protobuf's DecodeError has no common public base across its implementations
        raise InvalidRequest(f"malformed message: {error}; speak protobuf as in mq.proto") from error
    return Envelope(header, (payload,) if payload else ())


def halves(data: bytes, header_bytes_max: int | None = None) -> tuple[bytes, memoryview]:
    """The serialized header, and the payload as a view of `data`.

    Raises `RequestTooLarge` for a header above `header_bytes_max`, and `InvalidRequest` for anything but the two fields
    in their order: this is the first thing that a stranger's bytes meet.
    """
    view = memoryview(data)
    if not data:
        return b"", view
    if view[:1] != _HEADER_TAG:
        raise InvalidRequest("malformed message: the header must come first; speak protobuf as in mq.proto")
    length, at = _read_varint(view, 1)
    if at + length > len(view):
        raise InvalidRequest("malformed message: it ends within its header; speak protobuf as in mq.proto")
    if header_bytes_max is not None and length > header_bytes_max:
        raise RequestTooLarge(
            f"a message's header of {length} bytes is above {header_bytes_max}: only the payload may be large"
        )
    header = data[at : at + length]
    at += length
    if at == len(view):
        return header, view[at:]
    if view[at : at + 1] != _PAYLOAD_TAG:
        raise InvalidRequest("malformed message: only a payload may follow the header; speak protobuf as in mq.proto")
    length, at = _read_varint(view, at + 1)
    if at + length != len(view):
        raise InvalidRequest(
            "malformed message: the payload does not end where the message does; speak protobuf as in mq.proto"
        )
    return header, view[at:]


def split(payload: memoryview, lengths: Iterable[int]) -> list[memoryview]:
    """The payload's parts, as views. Raises `InvalidRequest` if the lengths do not add up to it."""
    parts: list[memoryview] = []
    at = 0
    for length in lengths:
        parts.append(payload[at : at + length])
        at += length
    if at != len(payload):
        raise InvalidRequest(f"malformed message: its parts add up to {at} bytes, the payload has {len(payload)}")
    return parts
