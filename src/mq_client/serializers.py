"""Python values to the bytes of a record and back: `Producer(value_serializer=…)`, `Consumer(value_deserializer=…)`,
and for keys.

    bytes       bytes as they are
    string      str, as UTF-8
    json        whatever JSON has, as UTF-8
    a callable  a serializer takes the value and answers bytes; a deserializer takes bytes and answers the value
    other name  what an installed package has under the entry point group `tritonmq.serializers`: an object with `dumps`
                and `loads`

None stays None, for keys and values alike: nothing is called for it. Rows of topics with a schema have types of their
own: only their keys are serialized. Pickle is refused: whoever may write to a topic could have its readers run
anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from mq_client.consuming.record_queue import ConsumerRecord
from mq_client.errors import InvalidRequest, InvalidSetting, NotDeserialized
from mq_client.plugins import load_plugin, plugin_names
from mq_protocol.names import did_you_mean

Serializer: TypeAlias = Callable[[Any], bytes]
Deserializer: TypeAlias = Callable[[bytes], Any]

GROUP: Final = "tritonmq.serializers"
_NEVER: Final = frozenset(("pickle", "_pickle", "cloudpickle", "dill", "marshal", "joblib", "shelve"))


class _Pair(NamedTuple):
    dumps: Serializer
    loads: Deserializer


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is not bytes")


def _string(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"{type(value).__name__} is not str")


def _to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


_BUILT_IN: Final = {
    "bytes": _Pair(_bytes, bytes),
    "string": _Pair(_string, bytes.decode),
    "json": _Pair(_to_json, json.loads),
}


def serializer_of(setting: str, given: str | Serializer | None) -> Serializer | None:
    """What is to be called with each value; None if nothing is. `setting`: its name, for errors.

    Raises `InvalidSetting` for a name that is not known. What is answered raises `InvalidRequest` for a value that
    cannot be serialized.
    """
    if given is None:
        return None
    serialize = given if callable(given) else _named(setting, given).dumps
    _refuse_pickle(setting, serialize)

    def checked(value: Any) -> bytes:
        try:
            found = serialize(value)
        except Exception as error:
            raise InvalidRequest(
                f"{setting} cannot serialize {type(value).__name__}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, bytes):
            raise InvalidRequest(f"{setting} answered {type(found).__name__}, not bytes: encode it")
        return found

    return checked


def deserializer_of(setting: str, given: str | Deserializer | None) -> Deserializer | None:
    """As `serializer_of`. What is answered raises whatever the deserializer does."""
    if given is None:
        return None
    deserialize = given if callable(given) else _named(setting, given).loads
    _refuse_pickle(setting, deserialize)
    return deserialize


def record_deserializer(
    key: Deserializer | None, value: Deserializer | None, advice: str = "ask for the next record to skip it"
) -> Callable[[ConsumerRecord], ConsumerRecord] | None:
    """What makes of a record as it came the one to hand out; None if that is the same. Raises `NotDeserialized`, which
    ends with the advice."""
    if key is None and value is None:
        return None

    def deserialized(record: ConsumerRecord) -> ConsumerRecord:
        what = "key"
        try:
            if key is not None and record.key is not None:
                record = record._replace(key=key(record.key))
            what = "value"
            if value is not None and isinstance(record.value, bytes):
                record = record._replace(value=value(record.value))
        except Exception as error:
            raise NotDeserialized(
                f"the {what} of offset {record.offset} of {record.topic!r} partition {record.partition} cannot be "
                f"deserialized: {type(error).__name__}: {error}; {advice}",
                record,
            ) from error
        return record

    return deserialized


def _named(setting: str, name: str) -> Any:
    found: Any = _BUILT_IN.get(name) if isinstance(name, str) else None
    if found is None and isinstance(name, str) and name not in _NEVER:
        found = load_plugin(GROUP, name)
    if found is None:
        known = (*_BUILT_IN, *plugin_names(GROUP))
        never = ": pickle would let whoever writes to a topic run code in its readers" if name in _NEVER else ""
        raise InvalidSetting(
            f"{setting}={name!r} is not known{never or did_you_mean(str(name), known)} "
            f"(it is one of {', '.join(known)}, or a callable)"
        )
    if not callable(getattr(found, "dumps", None)) or not callable(getattr(found, "loads", None)):
        raise InvalidSetting(f"{setting}={name!r}: what the package has under that name lacks `dumps` or `loads`")
    return found


def _refuse_pickle(setting: str, function: object) -> None:
    home = (getattr(function, "__module__", None) or "").partition(".")[0]
    if home in _NEVER:
        raise InvalidSetting(
            f"{setting}: {home} is refused, as whoever may write to a topic could have its readers run anything; use "
            "json"
        )
