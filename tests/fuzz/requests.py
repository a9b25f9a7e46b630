"""Requests of every method, by the grammar of mq.proto: what is read of them is within the method's bounds.

The first byte says of which method it is. `test_broker.py` and `brokers.py` ask brokers with them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import Message

from mq_broker.rpc.bounds import Bounded
from mq_protocol.errors import InvalidRequest, RequestTooLarge
from mq_protocol.methods import BROKER, PEER, Method
from tests.fuzz.altering import altered, message
from tests.fuzz.telling import check_told

METHODS: Final[tuple[Method, ...]] = (*BROKER.methods.values(), *PEER.methods.values())
_MANY: Final = (255, 256, 300, 1_001)


def generate(chance: random.Random) -> bytes:
    number = chance.randrange(len(METHODS))
    return bytes([number]) + request(METHODS[number], chance)


def request(method: Method, chance: random.Random) -> bytes:
    """One request, most often of the right form."""
    made = message(method.request, chance)
    if chance.random() < 0.1:
        _lengthen(made, chance)
    data: bytes = made.SerializeToString()
    match chance.randrange(10):
        case 0:
            return altered(data, chance)
        case 1:
            return data * chance.choice((2, 3))  # protobuf joins what is there twice
        case _:
            return data


def _lengthen(made: Any, chance: random.Random) -> None:
    """Repeats an element of one of its lists, or of a message within it, very often."""
    lists = [field.name for field in made.DESCRIPTOR.fields if field.is_repeated and not _is_map(field)]
    if not lists or not (elements := getattr(made, chance.choice(lists))):
        return
    if hasattr(elements[0], "DESCRIPTOR") and chance.random() < 0.5:
        _lengthen(elements[0], chance)
    else:
        elements.extend([elements[0]] * chance.choice(_MANY))


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def check(data: bytes) -> bool:
    if not data:
        return False
    method = METHODS[data[0] % len(METHODS)]
    reader = Bounded(method.name, method.request)
    try:
        found = asyncio.run(reader.read(data[1:]))
    except (InvalidRequest, RequestTooLarge) as error:
        check_told(error)
        return False
    for path, elements in method.bound.lists.items():
        assert sum(1 for _ in _elements(found, path.split("."))) <= elements.most, path
    return True


def _elements(found: Message, path: list[str]) -> Iterator[object]:
    inner: Any = getattr(found, path[0])
    if len(path) == 1:
        yield from inner
    elif hasattr(inner, "DESCRIPTOR"):
        yield from _elements(inner, path[1:])
    else:
        for each in inner:
            yield from _elements(each, path[1:])
