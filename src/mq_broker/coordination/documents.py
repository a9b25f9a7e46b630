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
import logging
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from mq_broker.coordination.interface import (
    SECURITY_DOCUMENT_BYTES_MAX,
    SECURITY_DOCUMENTS,
    BrokerRegistration,
    ClusterSpec,
    Move,
    QueueSpec,
    TopicSpec,
)
from mq_broker.core.messages import LeaderName, NodeState
from mq_protocol.addresses import parse_address
from mq_protocol.errors import (
    CoordinationUnavailable,
    InternalError,
    InvalidRequest,
    InvalidSetting,
    InvalidTopicName,
    shortened,
)
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
Parse: TypeAlias = Callable[[dict[str, Any]], T]

_log = logging.getLogger(__name__)

_HEX: Final = re.compile("[0-9a-f]{32}")
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
        (number(broker, "isr", 1, BROKER_MAX), _name(log_id, "isr")) for broker, log_id in _list(document["isr"], "isr")
    ]
    if len(isr) > MEMBERS_MAX:
        raise ValueError(f"isr names {len(isr)} brokers, not up to {MEMBERS_MAX}")
    if any(one[0] >= next_one[0] for one, next_one in itertools.pairwise(isr)):
        raise ValueError("isr does not name each broker once, in order")
    return NodeState(
        leader=None if leader is None else _leader(leader),
        leader_epoch=number(document["leader_epoch"], "leader_epoch", 0, EPOCH_MAX),
        isr=tuple(isr),
        recovery=number(document["recovery"], "recovery", 0, RECOVERY_MAX),
        token=_name(document["token"], "token"),
        offset_floor=number(document["offset_floor"], "offset_floor", 0, OFFSET_MAX),
        unknown=unknown_keys(document, _STATE_KEYS, STATE_UNKNOWN_BYTES_MAX),
    )


def _leader(pair: Any) -> LeaderName:
    broker, incarnation = _list(pair, "leader")
    return LeaderName(number(broker, "leader", 1, BROKER_MAX), number(incarnation, "leader", 0, INCARNATION_MAX))


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
            str(partition): with_unknown({"target": list(move.target), "origin": list(move.origin)}, move.unknown)
            for partition, move in sorted(topic.moving.items())
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
    name = text(document["name"], "name")
    check_topic_name(name, internal=True)
    assignment = tuple(_brokers(replicas) for replicas in _list(document["assignment"], "assignment"))
    if not 1 <= len(assignment) <= PARTITIONS_PER_TOPIC_MAX:
        raise ValueError(f"assignment has {len(assignment)} partitions, not 1 to {PARTITIONS_PER_TOPIC_MAX}")
    earlier = _list(document.get("earlier", []), "earlier")
    lives = number(document.get("queue_lives", 0), "queue_lives", 0, OFFSET_MAX)
    return TopicSpec(
        name=name,
        topic_id=_hex(document["topic_id"], "topic_id"),
        assignment=assignment,
        schema=base64.b64decode(text(document["schema"], "schema"), validate=True),
        settings={text(key, "settings"): text(value, "settings") for key, value in document["settings"].items()},
        moving={_partition(key, assignment): _move(move) for key, move in document.get("moving", {}).items()},
        earlier=tuple(number(columns, "earlier", 1, SCHEMA_FIELDS_MAX) for columns in earlier),
        unknown=unknown_keys(document, _TOPIC_KEYS, TOPIC_DOCUMENT_BYTES_MAX),
        queues=_queues(document.get("queues", {}), lives),
        queue_lives=lives,
        owner=text(document.get("owner", ""), "owner"),
    )


def _queues(documents: dict[str, Any], lives: int) -> dict[str, QueueSpec]:
    """Raises `ValueError` and `TypeError`."""
    if not isinstance(documents, dict) or len(documents) > QUEUE_GROUPS_PER_PARTITION_MAX:
        raise ValueError(f"queues names no groups, or more than {QUEUE_GROUPS_PER_PARTITION_MAX}")
    queues: dict[str, QueueSpec] = {}
    for group, document in documents.items():
        check_group_name(text(group, "queues"))
        queues[group] = QueueSpec(
            number(document["life"], "life", 1, lives),
            number(document["start_us"], "start_us", 0, OFFSET_MAX),
            {text(key, "settings"): text(value, "settings") for key, value in document["settings"].items()},
            unknown_keys(document, _QUEUE_KEYS, TOPIC_DOCUMENT_BYTES_MAX),
            text(document.get("owner", ""), "owner"),
        )
    if len({queue.life for queue in queues.values()}) < len(queues):
        raise ValueError("two queue groups have the same life")
    return queues


def _partition(key: str, assignment: Sequence[object]) -> int:
    """A key of `moving`, which JSON has as text."""
    if not (key.isascii() and key.isdigit() and len(key) <= _DIGITS_MAX):
        raise ValueError(f"moving names partition {quoted(key)}")
    return number(int(key), "moving", 0, len(assignment) - 1)


def _move(document: dict[str, Any]) -> Move:
    target, origin = _brokers(document["target"]), _brokers(document["origin"])
    return Move(target, origin, unknown_keys(document, _MOVE_KEYS, TOPIC_DOCUMENT_BYTES_MAX))


def _brokers(replicas: Any) -> tuple[int, ...]:
    brokers = tuple(number(broker, "brokers", 1, BROKER_MAX) for broker in _list(replicas, "brokers"))
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
    address, rack = text(document["address"], "address"), text(document["rack"], "rack")
    further: dict[str, Any] = {name: text(document.get(name, ""), name) for name in _ADDRESSES}
    for dialled in (address, *filter(None, further.values())):
        if parse_address(dialled)[1] == 0:
            raise ValueError(f"{quoted(dialled)} names no port")
    further |= {name: document.get(name, False) is True for name in _SAID}
    if len(rack) > NAME_CHARACTERS_MAX:
        raise ValueError(f"rack has {len(rack)} characters, not up to {NAME_CHARACTERS_MAX}")
    return BrokerRegistration(
        broker=number(document["broker"], "broker", 1, BROKER_MAX),
        incarnation=number(document["incarnation"], "incarnation", 0, INCARNATION_MAX),
        address=address,
        rack=rack,
        message_bytes_max=number(document["message_bytes_max"], "message_bytes_max", 1, (1 << 31) - 1),
        versions=Versions.said(
            number(document["protocol"], "protocol", 1, _VERSION_MAX),
            number(document["protocol_oldest"], "protocol_oldest", 1, _VERSION_MAX),
            text(document["release"], "release"),
            number(document["level"], "level", 1, _VERSION_MAX),
        ),
        **further,
    )


def cluster_to_json(cluster: ClusterSpec) -> dict[str, Any]:
    return with_unknown({"id": cluster.id, "level": cluster.level}, cluster.unknown)


def cluster_from_json(document: dict[str, Any]) -> ClusterSpec:
    level = number(document["level"], "level", 1, _VERSION_MAX)
    return ClusterSpec(
        _hex(document["id"], "id"), level, unknown_keys(document, ("id", "level"), TOPIC_DOCUMENT_BYTES_MAX)
    )


def stamp_to_json(stamp: int) -> dict[str, Any]:
    return {"stamp": stamp}


def stamp_from_json(document: dict[str, Any]) -> int:
    return number(document["stamp"], "stamp", 0, STAMP_MAX)


def topic_of(name: str) -> Parse[TopicSpec]:
    """What reads the document of the node of that name, and no other's."""

    def read(document: dict[str, Any]) -> TopicSpec:
        topic = topic_from_json(document)
        if topic.name != name:
            raise ValueError(f"it is the document of topic {quoted(topic.name)}")
        return topic

    return read


def registration_of(broker: int | str) -> Parse[BrokerRegistration]:
    """What reads the registration at the node of that broker, and no other's."""

    def read(document: dict[str, Any]) -> BrokerRegistration:
        registration = registration_from_json(document)
        if str(registration.broker) != str(broker):
            raise ValueError(f"it is the registration of broker {registration.broker}")
        return registration

    return read


# ---------------------------------------------------------------- fields


def number(value: Any, field: str, low: int = 0, high: int = OFFSET_MAX) -> int:
    if type(value) is not int or not low <= value <= high:  # neither a truth value nor 1.5, which int() would take
        raise ValueError(f"{field} is {_shown(value)}, not a whole number from {low} to {high}")
    return value


def text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{field} is {_shown(value)}, not a text")
    value.encode()  # half a character, which JSON can name and no message can carry, is a ValueError here
    return value


def _hex(value: Any, field: str) -> str:
    if not _HEX.fullmatch(text(value, field)):
        raise ValueError(f"{field} is {quoted(value)}, not 32 hexadecimal digits")
    return str(value)


def _name(value: Any, field: str) -> str:
    """A log's id or a writer's token: made by brokers, kept in memory for each partition."""
    if not _PLAIN.fullmatch(text(value, field)):
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


def load(data: bytes, read: Parse[T], where: str) -> T:
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


class Unreadable:
    """Owns what has been said of documents that cannot be read: each is told once for each content that it has.

    Anybody with access can write there, and a newer version may. Whoever reads such a document must not take it for one
    that is not there (trap 18), and the rest of the cluster has nothing to do with it. What to do without, each reader
    decides."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def read(self, where: str, data: bytes, parse: Parse[T]) -> T | None:
        """What the document says; None if it cannot be read, which the log then says with what to do."""
        try:
            return self.require(where, data, parse)
        except CoordinationUnavailable:
            return None

    def require(self, where: str, data: bytes, parse: Parse[T]) -> T:
        """As `read`. Raises `CoordinationUnavailable` if it cannot be read: for those who ask again later."""
        try:
            found = load(data, parse, where)
        except InternalError as error:
            what = f"{error} Put back what was there; to delete it instead is to delete what it stands for"
            if self._told.get(where) != hash(data):
                self._told[where] = hash(data)
                _log.error("%s. Everything else continues", what)
            raise CoordinationUnavailable(what) from error
        self._told.pop(where, None)
        return found
