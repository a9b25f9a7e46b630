"""Rules: who may do what. Pure.

A rule allows or denies one operation on one name, or on all names that begin alike, to one principal or to everybody.
What no rule allows is denied, and what one rule denies no other allows. Reading, writing, altering and deleting imply
describing; whoever is denied to describe is denied everything.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial, total_ordering
from typing import Any, Final, NamedTuple

from mq_broker.security.names import kind_of_kept
from mq_protocol.access.rights import CLUSTER_NAME, IMPLY_DESCRIBE, Kind, Operation, check_pair
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, InvalidTopicName, TritonMQError, shortened
from mq_protocol.limits import NAME_BYTES_MAX
from mq_protocol.names import check_group_name, check_lock_name, check_topic_name, quoted

EVERYBODY: Final = "*"

NAME_MAX: Final = 1_024
"""Bytes of a resource's name in a rule: transactions are named by ids, which are longer than names."""

_UNNAMEABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

REMEMBERED_MAX: Final = 100_000
"""Verdicts that are remembered at once. Names come from strangers."""

REMEMBERED_NAME_MAX: Final = NAME_BYTES_MAX
"""Characters. A verdict on a longer name is not remembered."""


class Effect(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


@total_ordering
@dataclass(frozen=True, slots=True)
class Rule:
    """`principal`: `User:etl`, `Group:night`, or `*` for everybody. `prefix`: of all names that begin with `name`.
    Raises `InvalidRequest` for what no rule can say."""

    principal: str
    effect: Effect
    operation: Operation
    kind: Kind
    name: str
    prefix: bool = False

    def __post_init__(self) -> None:
        if self.principal != EVERYBODY and kind_of_kept(self.principal) == "Broker":
            raise InvalidRequest(
                f"rules are for users, not for {quoted(self.principal)}: name User:NAME, Group:NAME, or * for all"
            )
        check_pair(self.kind, self.operation)
        if self.kind is Kind.CLUSTER and (self.name != CLUSTER_NAME or self.prefix):
            raise InvalidRequest("there is one cluster, and a rule about it has no name")
        if not self.name and not self.prefix:
            raise InvalidRequest("a rule without a name is about nothing: name a resource, or * for all")
        if len(self.name.encode("utf-8", "surrogatepass")) > NAME_MAX:
            raise InvalidRequest(f"the name in a rule has more than {NAME_MAX} bytes: give a shorter one")
        if _UNNAMEABLE.search(self.name):
            raise InvalidRequest(f"the name {quoted(self.name)} in a rule has characters that no name has")

    def __lt__(self, other: Rule) -> bool:
        return self._key() < other._key()

    def _key(self) -> tuple[str, str, str, str, str, bool]:
        return self.principal, self.kind, self.name, self.operation, self.effect, self.prefix


_CHECKS: Final[Mapping[Kind, Callable[[str], None]]] = {
    Kind.TOPIC: partial(check_topic_name, internal=True),
    Kind.GROUP: check_group_name,
    Kind.LOCK: check_lock_name,
}
"""Whether a name can be one of that kind. A transaction's is the id of its query, which may be any text."""


def check_new_principal(principal: str) -> None:
    """For a rule that is to be made. Raises `InvalidRequest` for a pattern: the rule would be about nobody."""
    if "*" in principal and principal != EVERYBODY:
        raise InvalidRequest(
            f"no name of a user or group has a *, so a rule for {quoted(principal)} would be about nobody: name one "
            "user, or Group:NAME for those whose token names this group, or * alone for everybody"
        )


def check_new(rule: Rule) -> None:
    """For a rule that is to be made. One that is kept is read without this: its names were taken before. Raises
    `InvalidRequest` for a name that nothing of the kind can have, on which a rule that denies would deny nothing."""
    check_new_principal(rule.principal)
    name = rule.name
    if not name or rule.kind not in _CHECKS:
        return
    if rule.prefix and (name != name.rstrip() or name in (".", "..")):
        name += "x"  # no whole name is so, and longer ones may begin so
    try:
        _CHECKS[rule.kind](name)
    except (InvalidRequest, InvalidTopicName) as error:
        raise InvalidRequest(
            f"the rule would be about nothing, since no {rule.kind.lower()} is called so: {error}"
        ) from error


class Verdict(NamedTuple):
    """`rule`: the one that decided; None if it was no rule. `why`: in words."""

    allowed: bool
    why: str
    rule: Rule | None = None


NO_RULE: Final = Verdict(False, "no rule allows it")
UNREADABLE: Final = Verdict(
    False, "rules of the cluster cannot be read, so that nobody but superusers is allowed anything"
)


@dataclass(slots=True)
class _Names:
    """The rules of one principal about one kind of resource. `lengths`: of the prefixes, shortest first."""

    literal: dict[str, list[Rule]] = field(default_factory=dict)
    prefixes: dict[str, list[Rule]] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()

    def add(self, rule: Rule) -> None:
        (self.prefixes if rule.prefix else self.literal).setdefault(rule.name, []).append(rule)
        if rule.prefix and len(rule.name) not in self.lengths:
            self.lengths = tuple(sorted((*self.lengths, len(rule.name))))

    def about(self, name: str) -> Iterator[Rule]:
        yield from self.literal.get(name, ())
        size = len(name)
        for length in self.lengths:
            if length > size:
                return
            yield from self.prefixes.get(name[:length], ())

    def all(self) -> Iterator[Rule]:
        for rules in (*self.literal.values(), *self.prefixes.values()):
            yield from rules


class RuleBook:
    """Owns rules as they are looked up, and the verdicts that were asked for. It does not change: new rules are a new
    book. `readable` false: some rules are not known, and one of them may deny."""

    def __init__(self, rules: Iterable[Rule] = (), *, readable: bool = True) -> None:
        self.readable = readable
        self._rules: dict[tuple[str, Kind], _Names] = {}
        self._remembered: dict[tuple[str, tuple[str, ...], str, str, str], Verdict] = {}
        for rule in rules:
            self._rules.setdefault((rule.principal, rule.kind), _Names()).add(rule)

    def verdict(
        self, principal: str, operation: Operation, kind: Kind, name: str, groups: tuple[str, ...] = ()
    ) -> Verdict:
        """Whether the principal may do that, who is in these groups. All as `str` of a principal gives them."""
        key = (principal, groups, operation, kind, name)
        known = self._remembered.get(key)
        if known is None:
            known = self._judge((principal, *groups, EVERYBODY), operation, kind, name)
            if len(name) <= REMEMBERED_NAME_MAX:
                if len(self._remembered) >= REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[key] = known
        return known

    def any_name(self, principal: str, operation: Operation, kind: Kind, groups: tuple[str, ...] = ()) -> Verdict:
        """Whether there is a name on which the principal may do that."""
        if not self.readable:
            return UNREADABLE
        mine = self._of((principal, *groups, EVERYBODY), kind)
        for rule in (rule for names in mine for rule in names.all()):
            if rule.effect is Effect.ALLOW and _covers(rule.operation, operation):
                about = (one for names in mine for one in names.about(rule.name))
                # To deny some of the names that begin so leaves others
                if not any(_denies(one, operation) and (one.prefix or not rule.prefix) for one in about):
                    return Verdict(True, "a rule allows it", rule)
        return NO_RULE

    def _of(self, principals: tuple[str, ...], kind: Kind) -> list[_Names]:
        found = (self._rules.get((who, kind)) for who in principals)
        return [names for names in found if names is not None]

    def _judge(self, principals: tuple[str, ...], operation: Operation, kind: Kind, name: str) -> Verdict:
        if not self.readable:
            return UNREADABLE
        allowing: Rule | None = None
        for names in self._of(principals, kind):
            for rule in names.about(name):
                if _denies(rule, operation):
                    return Verdict(False, "a rule denies it", rule)
                if allowing is None and rule.effect is Effect.ALLOW and _covers(rule.operation, operation):
                    allowing = rule
        return NO_RULE if allowing is None else Verdict(True, "a rule allows it", allowing)


def _denies(rule: Rule, asked: Operation) -> bool:
    return rule.effect is Effect.DENY and rule.operation in (asked, Operation.DESCRIBE)


def _covers(allowed: Operation, asked: Operation) -> bool:
    return allowed is asked or (asked is Operation.DESCRIBE and allowed in IMPLY_DESCRIBE)


BUCKETS: Final = 16
"""The coordination service keeps so many documents, each with the rules of some principals. One is JSON: `{"rules":
[[principal, effect, operation, kind, name, "literal" or "prefix"], …]}`, in order. It is read whole or not at all: a
rule that this version does not know may deny something."""

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
