"""Functions that see every record of a producer before it is sent, or of a consumer before it is handed out:
`Producer(interceptors=[…])`, `Consumer(interceptors=[…])`.

Each is given a record and answers one, the same or another; they are called in their order. A name stands for what an
installed package has under the entry point group `tritonmq.producer_interceptors` or `tritonmq.consumer_interceptors`.
What one raises, the caller of `publish` or `take` gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from mq_client.consuming.record_queue import ConsumerRecord
from mq_client.errors import InvalidRequest, InvalidSetting
from mq_client.plugins import load_plugin, plugin_names
from mq_protocol.names import did_you_mean

PRODUCER_GROUP: Final = "tritonmq.producer_interceptors"
CONSUMER_GROUP: Final = "tritonmq.consumer_interceptors"


class OutgoingRecord(NamedTuple):
    """What `publish` was given, before serializers. `topic` cannot be changed."""

    topic: str
    value: Any
    key: Any = None
    headers: Any = None


ProducerInterceptor: TypeAlias = Callable[[OutgoingRecord], OutgoingRecord]
ConsumerInterceptor: TypeAlias = Callable[[ConsumerRecord], ConsumerRecord]
R = TypeVar("R", OutgoingRecord, ConsumerRecord)


class Outgoing:
    """Owns a producer's interceptors."""

    def __init__(self, given: Sequence[str | ProducerInterceptor]) -> None:
        self._chain: tuple[ProducerInterceptor, ...] = _loaded(PRODUCER_GROUP, given)

    def __bool__(self) -> bool:
        return bool(self._chain)

    def record(self, topic: str, value: Any, key: Any, headers: Any) -> OutgoingRecord:
        """What is to be sent. Raises `InvalidRequest` for an answer that is no record, or of another topic."""
        record = _through(self._chain, OutgoingRecord(topic, value, key, headers), OutgoingRecord)
        if record.topic != topic:
            raise InvalidRequest(f"an interceptor answered a record of topic {record.topic!r}, and not of {topic!r}")
        return record

    def refuse(self, method: str) -> None:
        """Nothing is to pass interceptors unseen. Raises `InvalidRequest` if there are any."""
        if self._chain:
            raise InvalidRequest(
                f"{method} does not show each record to the producer's interceptors: use publish, or a producer without"
            )


def incoming(
    given: Sequence[str | ConsumerInterceptor], deserialize: Callable[[ConsumerRecord], ConsumerRecord] | None
) -> Callable[[ConsumerRecord], ConsumerRecord] | None:
    """What makes of a record as it came the one to hand out: deserializers first. None if that is the same."""
    chain: tuple[ConsumerInterceptor, ...] = _loaded(CONSUMER_GROUP, given)
    if not chain:
        return deserialize

    def handed_out(record: ConsumerRecord) -> ConsumerRecord:
        return _through(chain, record if deserialize is None else deserialize(record), ConsumerRecord)

    return handed_out


def _through(chain: Sequence[Callable[[R], R]], record: R, kind: type[R]) -> R:
    for interceptor in chain:
        answer: object = interceptor(record)
        if not isinstance(answer, kind):
            raise InvalidRequest(
                f"interceptor {_name(interceptor)} answered {type(answer).__name__}: give back the record, or "
                "record._replace(…)"
            )
        record = answer
    return record


def _loaded(group: str, given: Sequence[str | Callable[[Any], Any]]) -> tuple[Callable[[Any], Any], ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidSetting(f"interceptors={given!r} is no list: give [{given!r}]")
    return tuple(each if callable(each) else _named(group, each) for each in given)


def _named(group: str, name: str) -> Callable[[Any], Any]:
    found = load_plugin(group, name) if isinstance(name, str) else None
    if found is None:
        known = plugin_names(group)
        raise InvalidSetting(
            f"interceptor {name!r} is not known{did_you_mean(str(name), known)}: give a callable, or a name of the "
            f"entry point group {group}, which has {', '.join(known) or 'none'}"
        )
    if not callable(found):
        raise InvalidSetting(f"interceptor {name!r} is {type(found).__name__} in its package, not a callable")
    return found


def _name(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
