"""What is stored about brokers, topics and partitions: small JSON documents, the same for every implementation.

Not a place for decisions: it only turns the dataclasses of interface.py into bytes and back. Fields that are not known are
ignored, so that an older broker can read what a newer one wrote.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from mq_broker.coordination.interface import BrokerRegistration, Move, TopicSpec
from mq_broker.core.messages import LeaderName, NodeState
from mq_protocol.errors import InternalError

T = TypeVar("T")


def state_to_json(state: NodeState) -> dict[str, Any]:
    leader = None if state.leader is None else [state.leader.broker, state.leader.incarnation]
    return {
        "leader": leader,
        "leader_epoch": state.leader_epoch,
        "isr": [[broker, log_id] for broker, log_id in state.isr],
        "recovery": state.recovery,
        "token": state.token,
        "offset_floor": state.offset_floor,
    }


def state_from_json(document: dict[str, Any]) -> NodeState:
    leader = document["leader"]
    return NodeState(
        leader=None if leader is None else LeaderName(int(leader[0]), int(leader[1])),
        leader_epoch=int(document["leader_epoch"]),
        isr=tuple((int(broker), str(log_id)) for broker, log_id in document["isr"]),
        recovery=int(document["recovery"]),
        token=str(document["token"]),
        offset_floor=int(document.get("offset_floor", 0)),
    )


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
            str(number): {"target": list(move.target), "origin": list(move.origin)} for number, move in sorted(topic.moving.items())
        }
    if topic.earlier:
        document["earlier"] = list(topic.earlier)
    return document


def topic_from_json(document: dict[str, Any]) -> TopicSpec:
    return TopicSpec(
        name=str(document["name"]),
        topic_id=str(document["topic_id"]),
        assignment=tuple(_brokers(replicas) for replicas in document["assignment"]),
        schema=base64.b64decode(document["schema"], validate=True),
        settings={str(name): str(value) for name, value in document["settings"].items()},
        moving={
            int(number): Move(_brokers(move["target"]), _brokers(move["origin"]))
            for number, move in document.get("moving", {}).items()
        },
        earlier=tuple(int(columns) for columns in document.get("earlier", ())),
    )


def _brokers(replicas: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(broker) for broker in replicas)


def registration_to_json(registration: BrokerRegistration) -> dict[str, Any]:
    return {
        "broker": registration.broker,
        "incarnation": registration.incarnation,
        "address": registration.address,
        "rack": registration.rack,
        "peer_address": registration.peer_address,
    }


def registration_from_json(document: dict[str, Any]) -> BrokerRegistration:
    return BrokerRegistration(
        broker=int(document["broker"]),
        incarnation=int(document["incarnation"]),
        address=str(document["address"]),
        rack=str(document.get("rack", "")),
        peer_address=str(document.get("peer_address", "")),
    )


def dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def load(data: bytes, read: Callable[[dict[str, Any]], T], where: str) -> T:
    """Raises `InternalError` naming `where` if the document is not one of ours."""
    try:
        return read(json.loads(data))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, binascii.Error) as error:
        raise InternalError(
            f"{where} does not hold what TritonMQ writes there ({error!r}): was it edited, or made by another program?"
        ) from error
