"""What is stored about brokers, topics and partitions: small JSON documents, the same for every implementation.

Not a place for decisions: it only turns the dataclasses of interface.py into bytes and back. Keys that this version
does not know come from a newer one. They are not looked at, and every write keeps them (`mq_protocol/unknown_keys.py`).
A registration is the exception: a broker writes its own whole, and changes nobody else's. Keys that this version knows
are not believed: whoever reaches the coordination service may have written them. Each has its type and range, and a
document that breaks one is not read.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from mq_broker.coordination.interface import (
    SECURITY_DOCUMENT_BYTES_MAX,
    SECURITY_DOCUMENTS,
    BrokerRegistration,
    Features,
    Move,
    QueueSpec,
    SecurityDocuments,
    TopicSpec,
)
from mq_broker.core.messages import LeaderName, NodeState
from mq_protocol.addresses import parse_address
from mq_protocol.errors import InternalError, InvalidRequest, InvalidSetting, InvalidTopicName, shortened
from mq_protocol.limits import (
    BROKER_MAX,
    EPOCH_MAX,
    INCARNATION_MAX,
    MEMBERS_MAX,
    NAME_CHARACTERS_MAX,
    OFFSET_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    QUEUE_GROUPS_PER_PARTITION_MAX,
    RECOVERY_MAX,
    SCHEMA_FIELDS_MAX,
    STAMP_MAX,
    TOPIC_DOCUMENT_BYTES_MAX,
)
from mq_protocol.names import check_group_name, check_topic_name, quoted
from mq_protocol.unknown_keys import STATE_UNKNOWN_BYTES_MAX, unknown_keys, with_unknown
from mq_protocol.versions import Versions

T = TypeVar("T")

_TOPIC_ID: Final = re.compile("[0-9a-f]{32}")
_PLAIN: Final = re.compile("[0-9A-Za-z._:/-]{0,128}")
_DIGITS_MAX: Final = 10
_ERROR_BYTES_MAX: Final = 1_000

_VERSION_MAX: Final = (1 << 31) - 1

_STATE_KEYS: Final = frozenset(("leader", "leader_epoch", "isr", "recovery", "token", "offset_floor"))
_TOPIC_KEYS: Final = frozenset(
    ("name", "topic_id", "assignment", "schema", "settings", "moving", "earlier", "queues", "queue_lives", "owner")
)
_QUEUE_KEYS: Final = frozenset(("life", "start_us", "settings", "owner"))
_MOVE_KEYS: Final = frozenset(("target", "origin"))


def state_to_json(state: NodeState) -> dict[str, Any]:
    leader = None if state.leader is None else [state.leader.broker, state.leader.incarnation]
    document = {
        "leader": leader,
        "leader_epoch": state.leader_epoch,
        "isr": [[broker, log_id] for broker, log_id in state.isr],
        "recovery": state.recovery,
        "token": state.token,
        "offset_floor": state.offset_floor,
    }
    return with_unknown(document, state.unknown)


def state_from_json(document: dict[str, Any]) -> NodeState:
    leader = document["leader"]
    isr = [
        (_number(broker, "isr", 1, BROKER_MAX), _name(log_id, "isr"))
        for broker, log_id in _list(document["isr"], "isr")
    ]
    if len(isr) > MEMBERS_MAX:
        raise ValueError(f"isr names {len(isr)} brokers, not up to {MEMBERS_MAX}")
    if any(one[0] >= next_one[0] for one, next_one in itertools.pairwise(isr)):
        raise ValueError("isr does not name each broker once, in order")
    return NodeState(
        leader=None if leader is None else _leader(leader),
        leader_epoch=_number(document["leader_epoch"], "leader_epoch", 0, EPOCH_MAX),
        isr=tuple(isr),
        recovery=_number(document["recovery"], "recovery", 0, RECOVERY_MAX),
        token=_name(document["token"], "token"),
        offset_floor=_number(document["offset_floor"], "offset_floor", 0, OFFSET_MAX),
        unknown=unknown_keys(document, _STATE_KEYS, STATE_UNKNOWN_BYTES_MAX),
    )


def _leader(pair: Any) -> LeaderName:
    broker, incarnation = _list(pair, "leader")
    return LeaderName(_number(broker, "leader", 1, BROKER_MAX), _number(incarnation, "leader", 0, INCARNATION_MAX))


def topic_to_json(topic: TopicSpec) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "assignment": [list(replicas) for replicas in topic.assignment],
        "schema": base64.b64encode(topic.schema).decode("ascii"),
        "settings": topic.settings,
    }
    if topic.moving:
        document["moving"] = {
            str(number): with_unknown({"target": list(move.target), "origin": list(move.origin)}, move.unknown)
            for number, move in sorted(topic.moving.items())
        }
    if topic.earlier:
        document["earlier"] = list(topic.earlier)
    if topic.owner:
        document["owner"] = topic.owner
    if topic.queue_lives:
        document["queue_lives"] = topic.queue_lives
        document["queues"] = {group: _queue_to_json(queue) for group, queue in sorted(topic.queues.items())}
    return with_unknown(document, topic.unknown)


def _queue_to_json(queue: QueueSpec) -> dict[str, Any]:
    document: dict[str, Any] = {"life": queue.life, "start_us": queue.start_us, "settings": queue.settings}
    if queue.owner:
        document["owner"] = queue.owner
    return with_unknown(document, queue.unknown)


def topic_from_json(document: dict[str, Any]) -> TopicSpec:
    name = _text(document["name"], "name")
    check_topic_name(name, internal=True)
    topic_id = _text(document["topic_id"], "topic_id")
    if not _TOPIC_ID.fullmatch(topic_id):
        raise ValueError(f"topic_id is {quoted(topic_id)}, not 32 hexadecimal digits")
    assignment = tuple(_brokers(replicas) for replicas in _list(document["assignment"], "assignment"))
    if not 1 <= len(assignment) <= PARTITIONS_PER_TOPIC_MAX:
        raise ValueError(f"assignment has {len(assignment)} partitions, not 1 to {PARTITIONS_PER_TOPIC_MAX}")
    earlier = _list(document.get("earlier", []), "earlier")
    lives = _number(document.get("queue_lives", 0), "queue_lives", 0, OFFSET_MAX)
    return TopicSpec(
        name=name,
        topic_id=topic_id,
        assignment=assignment,
        schema=base64.b64decode(_text(document["schema"], "schema"), validate=True),
        settings={_text(key, "settings"): _text(value, "settings") for key, value in document["settings"].items()},
        moving={_partition(number, assignment): _move(move) for number, move in document.get("moving", {}).items()},
        earlier=tuple(_number(columns, "earlier", 1, SCHEMA_FIELDS_MAX) for columns in earlier),
        unknown=unknown_keys(document, _TOPIC_KEYS, TOPIC_DOCUMENT_BYTES_MAX),
        queues=_queues(document.get("queues", {}), lives),
        queue_lives=lives,
        owner=_text(document.get("owner", ""), "owner"),
    )


def _queues(documents: dict[str, Any], lives: int) -> dict[str, QueueSpec]:
    """Raises `ValueError` and `TypeError`."""
    if not isinstance(documents, dict) or len(documents) > QUEUE_GROUPS_PER_PARTITION_MAX:
        raise ValueError(f"queues names no groups, or more than {QUEUE_GROUPS_PER_PARTITION_MAX}")
    queues: dict[str, QueueSpec] = {}
    for group, document in documents.items():
        check_group_name(_text(group, "queues"))
        queues[group] = QueueSpec(
            _number(document["life"], "life", 1, lives),
            _number(document["start_us"], "start_us", 0, OFFSET_MAX),
            {_text(key, "settings"): _text(value, "settings") for key, value in document["settings"].items()},
            unknown_keys(document, _QUEUE_KEYS, TOPIC_DOCUMENT_BYTES_MAX),
            _text(document.get("owner", ""), "owner"),
        )
    if len({queue.life for queue in queues.values()}) < len(queues):
        raise ValueError("two queue groups have the same life")
    return queues


def _partition(text: str, assignment: Sequence[object]) -> int:
    """A key of `moving`, which JSON has as text."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise ValueError(f"moving names partition {quoted(text)}")
    return _number(int(text), "moving", 0, len(assignment) - 1)


def _move(document: dict[str, Any]) -> Move:
    target, origin = _brokers(document["target"]), _brokers(document["origin"])
    return Move(target, origin, unknown_keys(document, _MOVE_KEYS, TOPIC_DOCUMENT_BYTES_MAX))


def _brokers(replicas: Any) -> tuple[int, ...]:
    brokers = tuple(_number(broker, "brokers", 1, BROKER_MAX) for broker in _list(replicas, "brokers"))
    if not 1 <= len(brokers) <= MEMBERS_MAX or len(set(brokers)) != len(brokers):
        raise ValueError(f"{len(brokers)} brokers hold a partition, not 1 to {MEMBERS_MAX} different ones")
    return brokers


_ADDRESSES: Final = (
    "peer_address", "tls_address", "tls_peer_address", "grpc_address", "tls_grpc_address", "grpc_token_address",
    "flight_address", "tls_flight_address",
)  # fmt: skip
"""Beside the one that every broker has."""

_SAID: Final = ("zookeeper_auth", "judges", "insecure")


def registration_to_json(registration: BrokerRegistration) -> dict[str, Any]:
    versions = registration.versions
    return {
        "broker": registration.broker,
        "incarnation": registration.incarnation,
        "address": registration.address,
        "rack": registration.rack,
        "message_bytes_max": registration.message_bytes_max,
        "protocol": versions.protocol,
        "protocol_oldest": versions.protocol_oldest,
        "release": versions.release,
        "level": versions.level,
        **{name: address for name in _ADDRESSES if (address := getattr(registration, name))},
        **{name: True for name in _SAID if getattr(registration, name)},
    }


def registration_from_json(document: dict[str, Any]) -> BrokerRegistration:
    address, rack = _text(document["address"], "address"), _text(document["rack"], "rack")
    further: dict[str, Any] = {name: _text(document.get(name, ""), name) for name in _ADDRESSES}
    for dialled in (address, *filter(None, further.values())):
        if parse_address(dialled)[1] == 0:
            raise ValueError(f"{quoted(dialled)} names no port")
    further |= {name: document.get(name, False) is True for name in _SAID}
    if len(rack) > NAME_CHARACTERS_MAX:
        raise ValueError(f"rack has {len(rack)} characters, not up to {NAME_CHARACTERS_MAX}")
    return BrokerRegistration(
        broker=_number(document["broker"], "broker", 1, BROKER_MAX),
        incarnation=_number(document["incarnation"], "incarnation", 0, INCARNATION_MAX),
        address=address,
        rack=rack,
        message_bytes_max=_number(document["message_bytes_max"], "message_bytes_max", 1, (1 << 31) - 1),
        versions=Versions.said(
            _number(document["protocol"], "protocol", 1, _VERSION_MAX),
            _number(document["protocol_oldest"], "protocol_oldest", 1, _VERSION_MAX),
            _text(document["release"], "release"),
            _number(document["level"], "level", 1, _VERSION_MAX),
        ),
        **further,
    )


def features_to_json(features: Features) -> dict[str, Any]:
    return with_unknown({"level": features.level}, features.unknown)


def features_from_json(document: dict[str, Any]) -> Features:
    level = _number(document["level"], "level", 1, _VERSION_MAX)
    return Features(level, unknown_keys(document, ("level",), TOPIC_DOCUMENT_BYTES_MAX))


def stamp_to_json(stamp: int) -> dict[str, Any]:
    return {"stamp": stamp}


def stamp_from_json(document: dict[str, Any]) -> int:
    return _number(document["stamp"], "stamp", 0, STAMP_MAX)


def security_to_json(security: SecurityDocuments) -> dict[str, Any]:
    stored = {name: [version, data.decode()] for name, (version, data) in security.documents.items()}
    return {"version": security.version, "documents": stored}


def security_from_json(document: dict[str, Any]) -> SecurityDocuments:
    found: dict[str, tuple[int, bytes]] = {}
    for name, pair in document["documents"].items():
        version, text = _list(pair, "security")
        data = _text(text, "security").encode()
        if name not in SECURITY_DOCUMENTS or len(data) > SECURITY_DOCUMENT_BYTES_MAX:
            raise ValueError(f"there is no security document {_shown(name)}, or it is too large")
        found[name] = _number(version, "security", 0, _VERSION_MAX), data
    return SecurityDocuments(_number(document["version"], "security", 0, _VERSION_MAX), found)


def topic_of(name: str) -> Callable[[dict[str, Any]], TopicSpec]:
    """What reads the document of the node of that name, and no other's."""

    def read(document: dict[str, Any]) -> TopicSpec:
        topic = topic_from_json(document)
        if topic.name != name:
            raise ValueError(f"it is the document of topic {quoted(topic.name)}")
        return topic

    return read


def registration_of(broker: int | str) -> Callable[[dict[str, Any]], BrokerRegistration]:
    """What reads the registration at the node of that broker, and no other's."""

    def read(document: dict[str, Any]) -> BrokerRegistration:
        registration = registration_from_json(document)
        if str(registration.broker) != str(broker):
            raise ValueError(f"it is the registration of broker {registration.broker}")
        return registration

    return read


# ---------------------------------------------------------------- fields


def _number(value: Any, field: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:  # neither a truth value nor 1.5, which int() would take
        raise ValueError(f"{field} is {_shown(value)}, not a whole number from {low} to {high}")
    return value


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{field} is {_shown(value)}, not a text")
    value.encode()  # half a character, which JSON can name and no message can carry, is a ValueError here
    return value


def _name(value: Any, field: str) -> str:
    """A log's id or a writer's token: made by brokers, kept in memory for each partition."""
    if not _PLAIN.fullmatch(_text(value, field)):
        raise ValueError(f"{field} is {_shown(value)}, not a short plain name")
    return str(value)


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{field} is {_shown(value)}, not a list")
    return value


def _shown(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else f"{type(value).__name__} {quoted(reprlib.repr(value))}"


# ---------------------------------------------------------------- bytes


def check_topic_size(topic: TopicSpec, before: TopicSpec | None = None) -> None:
    """Raises `InvalidRequest` for a topic that the coordination service may not take. One that is too large already may
    shrink."""
    size = len(dump(topic_to_json(topic)))
    if size > TOPIC_DOCUMENT_BYTES_MAX and (before is None or size > len(dump(topic_to_json(before)))):
        raise InvalidRequest(
            f"topic {quoted(topic.name)} would take {size} bytes in the coordination service, and at most "
            f"{TOPIC_DOCUMENT_BYTES_MAX} are allowed: {len(topic.schema)} of them are its schema before encoding, "
            f"{len(topic.assignment)} partitions and {len(topic.moving)} moves have their lines. Give it fewer columns "
            "or shorter names of them, fewer partitions, or move fewer of them at a time"
        )


def check_security_documents(changes: Mapping[str, tuple[int, bytes]]) -> None:
    """Raises `InvalidRequest`."""
    for name, (_, data) in changes.items():
        if name not in SECURITY_DOCUMENTS:
            raise InvalidRequest(f"there is no security document {name!r}")
        if len(data) > SECURITY_DOCUMENT_BYTES_MAX:
            raise InvalidRequest(
                f"the security document {name} would have {len(data)} bytes, and at most {SECURITY_DOCUMENT_BYTES_MAX} "
                "are allowed: remove what is not needed any more; one rule for a prefix may stand for many"
            )


def dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def load(data: bytes, read: Callable[[dict[str, Any]], T], where: str) -> T:
    """Raises `InternalError` naming `where` if the document is not one of ours."""
    try:
        return read(json.loads(data))
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        RecursionError,
        InvalidRequest,
        InvalidSetting,
        InvalidTopicName,
    ) as error:
        raise InternalError(
            f"{where} does not hold what TritonMQ writes there ({shortened(repr(error), _ERROR_BYTES_MAX)}): "
            "was it edited, or made by another program?"
        ) from error
