"""Rules as the coordination service keeps them: sixteen documents, each with the rules of some principals.

A document is JSON: `{"rules": [[principal, effect, operation, kind, name, "literal" or "prefix"], …]}`, in order. It is
read whole or not at all: a rule that this version does not know may deny something.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from mq_broker.security.rules import Effect, Rule
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.errors import CoordinationUnavailable, TritonMQError, shortened

BUCKETS: Final = 16

_LITERAL, _PREFIX = "literal", "prefix"
_ERROR_BYTES_MAX: Final = 500

Documents = Mapping[str, tuple[int, bytes]]
"""By name: version and contents."""


def document_of(principal: str) -> str:
    """The name of the document that has the rules of that principal."""
    return f"acls/{hashlib.sha256(principal.encode()).digest()[0] % BUCKETS}"


def dump(rules: Iterable[Rule]) -> bytes:
    listed = [
        [rule.principal, rule.effect, rule.operation, rule.kind, rule.name, _PREFIX if rule.prefix else _LITERAL]
        for rule in sorted(rules)
    ]
    return json.dumps({"rules": listed}, separators=(",", ":"), ensure_ascii=False).encode()


def load(name: str, data: bytes) -> frozenset[Rule]:
    """The rules of the document of that name. Raises `CoordinationUnavailable`, which says what is wrong with it."""
    try:
        document = json.loads(data)
        if document.keys() != {"rules"}:
            raise ValueError("it has other keys than `rules`")
        return frozenset(_rule(name, *entry) for entry in document["rules"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, TritonMQError) as error:
        raise CoordinationUnavailable(
            f"the security document {name} does not hold rules that this version knows "
            f"({shortened(repr(error), _ERROR_BYTES_MAX)}): put back what was there, or start a release that knows them"
        ) from error


def _rule(document: str, principal: Any, effect: Any, operation: Any, kind: Any, name: Any, match: Any) -> Rule:
    if match not in (_LITERAL, _PREFIX) or not isinstance(name, str) or not isinstance(principal, str):
        raise ValueError("a rule is no list of texts")
    rule = Rule(principal, Effect(effect), Operation(operation), Kind(kind), name, match == _PREFIX)
    if document_of(rule.principal) != document:
        raise ValueError(f"the rules of {rule.principal} belong to {document_of(rule.principal)}")
    return rule


class Edit(NamedTuple):
    """What is to be written, with the versions that it replaces, and how many rules come and go."""

    changes: dict[str, tuple[int, bytes]]
    added: int
    removed: int


def edited(documents: Documents, add: Iterable[Rule], remove: Iterable[Rule]) -> Edit:
    """The documents with some rules less, then some more; those alone that change. A rule that is there is not added
    again, one that is not there is not removed. Raises `CoordinationUnavailable` for a document that cannot be
    read."""
    before: dict[str, frozenset[Rule]] = {}
    after: dict[str, set[Rule]] = {}

    def rules_of(principal: str) -> set[Rule]:
        name = document_of(principal)
        if name not in after:
            before[name] = load(name, documents[name][1]) if name in documents else frozenset()
            after[name] = set(before[name])
        return after[name]

    for rule in remove:
        rules_of(rule.principal).discard(rule)
    for rule in add:
        rules_of(rule.principal).add(rule)
    return Edit(
        {
            name: (documents[name][0] if name in documents else -1, dump(rules))
            for name, rules in after.items()
            if rules != before[name]
        },
        sum(len(rules - before[name]) for name, rules in after.items()),
        sum(len(before[name] - rules) for name, rules in after.items()),
    )
