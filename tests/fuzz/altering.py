"""How inputs are altered: bytes, JSON documents and protobuf messages that were whole, wrong in a few places."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.mq_broker.coordination.absurd import VALUES

WORDS = (0, 1, -1, 2, 7, 8, 255, 256, 2**15, 2**16, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
TEXTS = (
    *("", "t", "é", "a" * 255, "a" * 256, "x" * 3_000, "a\nb", "\u202e"),
    *("../../x", "__transactions", "User:etl", "\x00"),
)
DEPTH_MAX = 4


def altered(data: bytes, chance: random.Random, most: int = 8, within: int = 0) -> bytes:
    """With one to `most` places altered, half of them in the first `within` bytes if that is given."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, most))):
        size = within if within and chance.random() < 0.5 else len(out)
        at = chance.randrange(size) if size else 0
        match chance.choice((0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 5)):
            case 0:
                out[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                out[at : at + 1] = bytes([(out[at] if at < len(out) else 0) ^ 1 << chance.randrange(8)])
            case 2:
                width = chance.choice((2, 4, 8))
                at -= at % width
                out[at : at + width] = (chance.choice(WORDS) & (1 << 8 * width) - 1).to_bytes(width, "little")
            case 3:
                del out[at : at + chance.randrange(1, 64)]
            case 4:
                out[at:at] = chance.randbytes(chance.randrange(1, 64))
            case _:
                there = chance.randrange(len(out) or 1)
                out[at : at + 16] = out[there : there + 16]
    return bytes(out)


def altered_document(document: dict[str, Any], chance: random.Random) -> bytes:
    """As JSON: a value somewhere in it is absent or another, then some bytes may be altered as well."""
    changed = copy.deepcopy(document)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        _alter_value(changed, chance)
    data = json.dumps(changed).encode("utf-8", "surrogatepass")
    return altered(data, chance, 3) if chance.random() < 0.2 else data


def _alter_value(value: Any, chance: random.Random) -> None:
    while isinstance(value, dict | list) and value:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.7:
            value = value[key]
            continue
        match chance.randrange(6):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[chance.choice(("new", "", "0", "-1", "x" * 300))] = value.pop(key)
            case _:
                value[key] = copy.deepcopy(chance.choice(VALUES))
        return


def message(kind: type[Message], chance: random.Random, depth: int = 0) -> Any:
    """One of that type: some fields are left out, some are absurd."""
    made = kind()
    for field in made.DESCRIPTOR.fields:
        if chance.random() < 0.4:
            continue
        if not field.is_repeated:
            _set(made, field, chance, depth)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(made, field.name), field, chance)
        else:
            for _ in range(chance.choice((0, 1, 1, 2, 3))):
                _add(getattr(made, field.name), field, chance, depth)
    return made


def _set(made: Any, field: FieldDescriptor, chance: random.Random, depth: int) -> None:
    if field.message_type is None:
        setattr(made, field.name, _value(field, chance))
    elif depth < DEPTH_MAX:
        kind = type(getattr(made, field.name))
        getattr(made, field.name).CopyFrom(message(kind, chance, depth + 1))


def _add(elements: Any, field: FieldDescriptor, chance: random.Random, depth: int) -> None:
    if field.message_type is None:
        elements.append(_value(field, chance))
    elif depth < DEPTH_MAX:
        element = elements.add()
        element.CopyFrom(message(type(element), chance, depth + 1))


def _fill_map(entries: Any, field: FieldDescriptor, chance: random.Random) -> None:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for _ in range(chance.choice((0, 1, 2))):
        entries[_value(key, chance)] = _value(value, chance)


_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def _value(field: FieldDescriptor, chance: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.randbytes(chance.choice((0, 1, 16, 16, 32, 300)))
        case FieldDescriptor.CPPTYPE_STRING:
            return "t" if chance.random() < 0.5 else chance.choice(TEXTS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return chance.choice([value.number for value in field.enum_type.values])
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return chance.choice((0.0, -1.0, float("inf"), float("nan")))
        case kind:
            low, high = _BITS[kind]
            return 0 if chance.random() < 0.4 else min(max(chance.choice(WORDS), low), high)
