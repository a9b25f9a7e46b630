"""Arrow Flight, as far as brokers serve it: its messages as bytes and back, and what a ticket says. Pure.

Flight is a gRPC service of Arrow's (Flight.proto there). Here are the few of its messages that reading needs. They are
written and read by hand, since a stored batch goes into `FlightData` without being decoded, and with one copy. What is
read comes from strangers: each message is bounded before it gets here, and anything malformed is an `InvalidRequest`.

A ticket, and the command of a descriptor, is a JSON object. Its keys are the fields of `Wanted`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from mq_protocol.errors import InvalidRequest, RequestTooLarge, shortened
from mq_protocol.limits import FLIGHT_REQUEST_BYTES_MAX, OFFSET_MAX, PARTITIONS_PER_TOPIC_MAX, SCHEMA_FIELDS_MAX
from mq_protocol.names import did_you_mean, quoted
from mq_protocol.wire.envelope import Buffer, varint

SERVICE: Final = "arrow.flight.protocol.FlightService"
PLAIN_SCHEME: Final = "grpc+tcp"
TLS_SCHEME: Final = "grpc+tls"
UNKNOWN_COUNT: Final = -1
"""Of records and bytes: they are not counted before they are read."""

_PATH, _COMMAND = 1, 2
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED_64: 8, _FIXED_32: 4}
_VARINT_BYTES_MAX: Final = 10
_PREFIX: Final = struct.Struct("<Ii")  # of an Arrow message: continuation marker, bytes of metadata
_ERROR_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader asks for. `partition` None: all of them, in a descriptor; a ticket names one. `start` None: the
    first record that is kept. `end` None: what is committed when the reading begins. `topic_id` "": whatever topic has
    that name. `columns` None: all."""

    topic: str
    partition: int | None = None
    start: int | None = None
    end: int | None = None
    columns: tuple[str, ...] | None = None
    filter: str = ""
    topic_id: str = ""

    def to_bytes(self) -> bytes:
        """As a ticket. Its text is not escaped, so that it is hardly longer than the command that it was made of."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        given = {key: value for key, value in said.items() if value not in (None, "")}
        return json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()


_KEYS: Final = tuple(each.name for each in fields(Wanted))


# ------------------------------------------------------------------ what clients say


def ticket_of(data: bytes) -> Wanted:
    """Of a message `Ticket`. It names a partition."""
    wanted = _wanted(_last(_parsed(data), 1), "ticket")
    if wanted.partition is None:
        raise InvalidRequest("the ticket names no partition: a ticket reads one; GetFlightInfo gives one for each")
    return wanted


def descriptor_of(data: bytes) -> Wanted:
    """Of a message `FlightDescriptor`: a path of a topic and perhaps a partition, or a command that says what a ticket
    does."""
    found = list(_parsed(data))
    kind = next((value for number, value in reversed(found) if number == 1), 0)
    if kind == _COMMAND:
        return _wanted(_last(found, 2), "command")
    path = [_text(value, "path") for number, value in found if number == 3]
    if kind != _PATH or not 1 <= len(path) <= 2:
        raise InvalidRequest(
            "the descriptor names no topic: give the path TOPIC or TOPIC, PARTITION, or a command, which is a JSON "
            f"object with some of {', '.join(_KEYS)}"
        )
    if len(path) == 1:
        return Wanted(path[0])
    if not (path[1].isascii() and path[1].isdigit() and len(path[1]) <= len(str(PARTITIONS_PER_TOPIC_MAX))):
        raise InvalidRequest(f"the descriptor's path names the partition {quoted(path[1])}: write a number")
    return Wanted(path[0], partition=int(path[1]))


def prefix_of(data: bytes) -> str:
    """Of a message `Criteria`: how the names of the topics begin that are listed."""
    return _text(_last(_parsed(data), 1), "criteria")


# ------------------------------------------------------------------ what is said to them


def data_message(header: Buffer, body: Buffer = b"", metadata: bytes = b"") -> bytes:
    """`FlightData`. `header`: the metadata of an Arrow message; `metadata`: what the application says beside it."""
    return b"".join((*_field(2, header), *(_field(3, metadata) if metadata else ()), *_field(1000, body)))


def split_message(message: Buffer) -> tuple[memoryview, memoryview]:
    """The metadata and the body of an encapsulated Arrow message that was checked before, as views."""
    view = memoryview(message)
    _, size = _PREFIX.unpack_from(view)
    return view[_PREFIX.size : _PREFIX.size + size], view[_PREFIX.size + size :]


def schema_result(schema: bytes) -> bytes:
    """`SchemaResult`. `schema`: an encapsulated Arrow message."""
    return b"".join(_field(1, schema))


def endpoint(ticket: Wanted, locations: Sequence[str]) -> bytes:
    """`FlightEndpoint`. Without locations a client asks where it got it."""
    parts = [*_field(1, b"".join(_field(1, ticket.to_bytes())))]
    for uri in locations:
        parts += _field(2, b"".join(_field(1, uri.encode())))
    return b"".join(parts)


def flight_info(schema: bytes, wanted: Wanted, endpoints: Sequence[bytes]) -> bytes:
    """`FlightInfo`, with a descriptor by which it can be asked for again."""
    command = b"".join((*_number(1, _COMMAND), *_field(2, wanted.to_bytes())))
    parts = [*_field(1, schema), *_field(2, command)]
    for each in endpoints:
        parts += _field(3, each)
    return b"".join((*parts, *_number(4, UNKNOWN_COUNT), *_number(5, UNKNOWN_COUNT)))


def location(address: str, *, tls: bool) -> str:
    """Of a broker's Flight port."""
    return f"{TLS_SCHEME if tls else PLAIN_SCHEME}://{address}"


# ------------------------------------------------------------------ private: JSON


def _wanted(data: bytes, what: str) -> Wanted:
    try:
        found = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        why = shortened(str(error), _ERROR_CHARACTERS)
        raise InvalidRequest(f"the {what} is no JSON object with each key once: {why}") from None
    if not isinstance(found, dict):
        raise InvalidRequest(f"the {what} is no JSON object: it has some of the keys {', '.join(_KEYS)}")
    for key in found:
        if key not in _KEYS:
            raise InvalidRequest(
                f"the {what} has a key {quoted(key)}{did_you_mean(key, _KEYS)}: there are {', '.join(_KEYS)}"
            )
    if "topic" not in found:
        raise InvalidRequest(f"the {what} names no topic")
    return Wanted(
        topic=_string(found["topic"], "topic", what),
        partition=_whole(found.get("partition"), "partition", PARTITIONS_PER_TOPIC_MAX - 1, what),
        start=_whole(found.get("start"), "start", OFFSET_MAX, what),
        end=_whole(found.get("end"), "end", OFFSET_MAX, what),
        columns=_names(found.get("columns"), what),
        filter=_string(found.get("filter", ""), "filter", what),
        topic_id=_string(found.get("topic_id", ""), "topic_id", what),
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _string(value: Any, key: str, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"the {what} has a {key} that is no text")
    try:
        value.encode()  # half a character, which JSON can name
    except UnicodeEncodeError:
        raise InvalidRequest(f"the {what} has a {key} that is no text") from None
    return value


def _whole(value: Any, key: str, most: int, what: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= most:  # neither a truth value nor 1.5
        raise InvalidRequest(f"the {what} has a {key} that is no whole number from 0 to {most}")
    return value


def _names(value: Any, what: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not 1 <= len(value) <= SCHEMA_FIELDS_MAX:
        raise InvalidRequest(f"the {what} has columns that are no list of 1 to {SCHEMA_FIELDS_MAX} names")
    return tuple(_string(each, "column", what) for each in value)


# ------------------------------------------------------------------ private: protobuf


def _parsed(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number and value. Those of a fixed size are passed over: none is looked for."""
    if len(data) > FLIGHT_REQUEST_BYTES_MAX:
        raise RequestTooLarge(
            f"a Flight request of {len(data)} bytes is above {FLIGHT_REQUEST_BYTES_MAX}: name fewer columns, or write "
            "a shorter filter"
        )
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
        elif kind == _BYTES:
            size, at = _read_varint(data, at)
            if size > len(data) - at:
                raise _malformed()
            yield tag >> 3, data[at : at + size]
            at += size
        elif kind in _FIXED_BYTES and at + _FIXED_BYTES[kind] <= len(data):
            at += _FIXED_BYTES[kind]
        else:
            raise _malformed()


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(len(data), at + _VARINT_BYTES_MAX)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise _malformed()


def _malformed() -> InvalidRequest:
    return InvalidRequest("malformed Flight message: its fields do not end where it does")


def _last(found: Iterator[tuple[int, int | bytes]] | Sequence[tuple[int, int | bytes]], number: int) -> bytes:
    """The value of a field of bytes: the last counts, as in protobuf; none is empty."""
    value: int | bytes = b""
    for each, said in found:
        if each == number:
            value = said
    if isinstance(value, int):
        raise _malformed()
    return value


def _text(value: int | bytes, what: str) -> str:
    if isinstance(value, int):
        raise _malformed()
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"malformed Flight message: its {what} is no UTF-8") from None


def _field(number: int, value: Buffer) -> tuple[Buffer, ...]:
    size = len(value) if isinstance(value, bytes) else memoryview(value).nbytes
    return varint(number << 3 | _BYTES), varint(size), value


def _number(number: int, value: int) -> tuple[bytes, bytes]:
    negative_as_64_bits = value & (1 << 64) - 1
    return varint(number << 3 | _VARINT), varint(negative_as_64_bits)
