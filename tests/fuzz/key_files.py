"""Files with the keys that wrap data keys, altered, as an editor or a disk may leave them. No error shows a key."""

from __future__ import annotations

import base64
import json
import random
import tempfile
from pathlib import Path
from typing import Any, Final

from mq_broker.storage.key_file import FORMAT, KEY_BYTES, KeyFile
from mq_broker.storage.key_provider import DoesNotUnwrap, FileKeyProvider, NoSuchKey
from mq_protocol.errors import InvalidSetting
from tests.fuzz.altering import altered, altered_document
from tests.fuzz.telling import check_told

_ROOM: Final = tempfile.TemporaryDirectory()
_PATH: Final = Path(_ROOM.name) / "keys.json"
_KEYS: Final = [bytes([number]) * KEY_BYTES for number in (1, 2, 3)]
_TEXTS: Final = [base64.b64encode(key).decode() for key in _KEYS]
_SHOWN_MAX: Final = 12
"""So many characters of a key tell nothing."""

_WHOLE: Final[dict[str, Any]] = {
    "format": FORMAT,
    "current": {"main": "main-00000001", "orders": "orders-00000003"},
    "keys": {"main-00000001": _TEXTS[0], "main-00000002": _TEXTS[1], "orders-00000003": _TEXTS[2]},
}


def generate(chance: random.Random) -> bytes:
    data = json.dumps(_WHOLE).encode() if chance.random() < 0.4 else altered_document(_WHOLE, chance)
    return altered(data, chance, 3) if chance.random() < 0.3 else data


def check(data: bytes) -> bool:
    _PATH.touch(mode=0o600)
    _PATH.write_bytes(data)
    try:
        provider = FileKeyProvider(_PATH)
    except InvalidSetting as error:
        check_told(error)
        _check_no_key(str(error))
        return False
    content = KeyFile.decode(data)
    assert KeyFile.decode(content.encode()) == content
    for name in content.current:
        _is_of_use(provider, name, content)
    return True


def _check_no_key(told: str) -> None:
    assert not any(text[:_SHOWN_MAX] in told for text in _TEXTS)


def _is_of_use(provider: FileKeyProvider, name: str, content: KeyFile) -> None:
    """The key of that name wraps and unwraps, or there is none."""
    try:
        key_id = provider.current(name)
    except NoSuchKey as error:
        check_told(error)
        assert content.current[name] not in content.keys
        return
    wrapped = provider.wrap(key_id, b"data key", b"context")
    assert provider.unwrap(key_id, wrapped, b"context") == b"data key"
    try:
        provider.unwrap(key_id, wrapped, b"another")
    except DoesNotUnwrap as error:
        check_told(error)
    else:
        raise AssertionError("it unwraps what was wrapped for another place")
