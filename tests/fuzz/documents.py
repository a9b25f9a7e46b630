"""Documents of the coordination service, altered: of topics, partitions, brokers and features, and those about rights.

The first byte says which it is to be.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from mq_broker.coordination import documents
from mq_broker.coordination.interface import BrokerRegistration, ClusterSpec, Move, QueueSpec, TopicSpec
from mq_broker.core.messages import LeaderName, NodeState
from mq_broker.security import floor, quotas, revoked, rules, tokens
from mq_broker.security.rules import Effect, Rule
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.errors import CoordinationUnavailable, InternalError
from tests.fuzz.altering import altered_document
from tests.fuzz.telling import check_told
from tests.mq_broker.coordination.wire import id_of


class Document(NamedTuple):
    """`read` raises `InternalError` or `CoordinationUnavailable`; `written` says what was read as bytes again, None
    where nothing does."""

    whole: dict[str, Any]
    read: Callable[[bytes], Any]
    written: Callable[[Any], bytes] | None


def _stored(
    whole: dict[str, Any], read: Callable[[dict[str, Any]], Any], write: Callable[[Any], dict[str, Any]]
) -> Document:
    return Document(whole, lambda data: documents.load(data, read, "/x"), lambda found: documents.dump(write(found)))


_TOPIC: Final = TopicSpec(
    "t",
    id_of(""),
    ((1, 2), (2, 1, 3)),
    b"abc",
    {"durability": "os"},
    {1: Move((2, 3), (2, 1))},
    (1,),
    queues={"g": QueueSpec(2, 5, {"lease_ms": "5s"}), "h": QueueSpec(3)},
    queue_lives=3,
    owner="User:etl",
)
_RULES: Final = [
    Rule("User:etl", effect, Operation.READ, Kind.TOPIC, name, prefix)
    for effect, name, prefix in ((Effect.ALLOW, "orders-", True), (Effect.DENY, "orders-secret", False))
]
_RULES_NAME: Final = rules.document_of("User:etl")


def _rules(data: bytes) -> frozenset[Rule]:
    return rules.load(_RULES_NAME, data)


DOCUMENTS: Final = (
    _stored(
        documents.state_to_json(NodeState(LeaderName(1, 7), 3, ((1, "a"), (2, "b")), 1, "1.7.9", 5)),
        documents.state_from_json,
        documents.state_to_json,
    ),
    _stored(documents.topic_to_json(_TOPIC), documents.topic_of("t"), documents.topic_to_json),
    _stored(
        documents.registration_to_json(
            replace(BrokerRegistration(3, 17, "h:1", "rack", "h:2"), grpc_address="h:3", zookeeper_auth=True)
        ),
        documents.registration_of(3),
        documents.registration_to_json,
    ),
    _stored(
        documents.cluster_to_json(ClusterSpec("c" * 32, 2)), documents.cluster_from_json, documents.cluster_to_json
    ),
    Document(
        json.loads(rules.dump(_RULES)),
        lambda data: rules.load(_RULES_NAME, data),
        rules.dump,
    ),
    Document({"names": ["User:etl"], "serials": ["5f3a9c"]}, revoked.load, revoked.dump),
    Document({"quotas": {"User:etl": {"produce": 5_000_000}, "*": {"requests": 10}}}, quotas.load, None),
    Document(
        {"users": {"etl": {"created": 5, "tokens": {"0" * 16: {"sha256": "0" * 64, "created": 5, "expires": 9}}}}},
        tokens.load,
        tokens.dump,
    ),
    Document({"demands": ["authorize", "tls"]}, floor.load, floor.dump),
)


def generate(chance: random.Random) -> bytes:
    number = chance.randrange(len(DOCUMENTS))
    return bytes([number]) + altered_document(DOCUMENTS[number].whole, chance)


def check(data: bytes) -> bool:
    if not data:
        return False
    document = DOCUMENTS[data[0] % len(DOCUMENTS)]
    try:
        found = document.read(data[1:])
    except (InternalError, CoordinationUnavailable) as error:
        check_told(error)
        return False
    if document.written is not None:
        again = document.written(found)
        assert document.read(again) == found
    return True
