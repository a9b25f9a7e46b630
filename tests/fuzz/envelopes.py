"""Messages of a header and a payload, as they come to a broker and to its clients: what is read is what protobuf itself
reads."""

from __future__ import annotations

import random
from typing import Any

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, RequestTooLarge
from mq_protocol.wire.envelope import Envelope, decode, encode
from tests.fuzz.altering import altered, message

HEADER_BYTES_MAX = 2_000
_KINDS: tuple[tuple[Any, Any], ...] = (
    (pb.ProduceHeader, pb.ProduceRequest),
    (pb.BatchesHeader, pb.BatchesResponse),
    (pb.WorkHeader, pb.WorkResponse),
)


def generate(chance: random.Random) -> bytes:
    number = chance.randrange(len(_KINDS))
    header = message(_KINDS[number][0], chance)
    data = encode(Envelope(header, (chance.randbytes(chance.choice((0, 1, 127, 128, 300))),)))
    return bytes([number]) + (altered(data, chance, within=12) if chance.random() < 0.7 else data)


def check(data: bytes) -> bool:
    if not data:
        return False
    header, whole = _KINDS[data[0] % len(_KINDS)]
    try:
        found = decode(data[1:], header, HEADER_BYTES_MAX)
    except (InvalidRequest, RequestTooLarge):
        return False
    assert found.header.ByteSize() <= HEADER_BYTES_MAX
    theirs = whole.FromString(data[1:])
    assert _written(found.header) == _written(theirs.header)
    assert bytes(found.payload) == theirs.payload
    again = decode(encode(found), header)
    assert _written(again.header) == _written(found.header)
    assert bytes(again.payload) == bytes(found.payload)
    return True


def _written(header: Any) -> bytes:
    data: bytes = header.SerializeToString(deterministic=True)
    return data
