"""Requests of Arrow Flight: tickets, descriptors and criteria. The first byte says which one it is. What is accepted is
the same once it is written and read again."""

from __future__ import annotations

import random
from typing import Any, Final

from mq_protocol.errors import InvalidRequest, RequestTooLarge
from mq_protocol.wire.flight import descriptor_of, prefix_of, ticket_of
from tests.fuzz.altering import TEXTS, WORDS, altered, altered_document
from tests.fuzz.telling import check_told

_KINDS: Final = 4


def _field(number: int, value: bytes) -> bytes:
    size, length = len(value), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes([number << 3 | 2]) + bytes(length) + value


def _wanted(chance: random.Random) -> bytes:
    document: dict[str, Any] = {"topic": "t", "partition": chance.choice((0, 3, 9_999))}
    for key, values in (
        ("start", (0, 5, *WORDS)),
        ("end", (0, 7, *WORDS)),
        ("columns", (["n"], ["n", "é"], list(TEXTS))),
        ("filter", ("n > 3", *TEXTS)),
        ("topic_id", ("ab" * 16, *TEXTS)),
    ):
        if chance.random() < 0.5:
            document[key] = chance.choice(values)
    return altered_document(document, chance)


def generate(chance: random.Random) -> bytes:
    kind = chance.randrange(_KINDS)
    match kind:
        case 0:
            data = _field(1, _wanted(chance))
        case 1:
            data = b"\x08\x02" + _field(2, _wanted(chance))
        case 2:
            path = [chance.choice((*TEXTS, "12", "-1")).encode() for _ in range(chance.randrange(4))]
            data = b"\x08\x01" + b"".join(_field(3, each) for each in path)
        case _:
            data = _field(1, chance.choice(TEXTS).encode())
    return bytes([kind]) + (altered(data, chance, 3) if chance.random() < 0.3 else data)


def check(data: bytes) -> bool:
    if not data:
        return False
    kind, said = data[0] % _KINDS, data[1:]
    try:
        if kind == 0:
            found = ticket_of(said)
            assert ticket_of(_field(1, found.to_bytes())) == found
        elif kind in (1, 2):
            found = descriptor_of(said)
            assert descriptor_of(b"\x08\x02" + _field(2, found.to_bytes())) == found
        else:
            prefix_of(said).encode()
    except (InvalidRequest, RequestTooLarge) as error:
        check_told(error)
        return False
    return True
