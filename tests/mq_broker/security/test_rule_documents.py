"""Rules as documents: what is written is read again, and what is not ours is not believed in part."""

from __future__ import annotations

import json
import random

import pytest

from mq_broker.coordination.interface import ACL_DOCUMENTS, SecurityDocuments
from mq_broker.security.rules import BUCKETS, Effect, Rule, document_of, dump, edited, load
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.errors import CoordinationUnavailable


def rule(principal: str = "User:etl", name: str = "t", **changes: object) -> Rule:
    said = {"effect": Effect.ALLOW, "operation": Operation.READ, "kind": Kind.TOPIC, "prefix": False, **changes}
    return Rule(principal, name=name, **said)  # type: ignore[arg-type]


def all_rules(documents: SecurityDocuments) -> set[Rule]:
    return {each for name, (_, data) in documents.documents.items() for each in load(name, data)}


def test_the_coordination_service_keeps_every_document_that_there_can_be() -> None:
    assert {document_of(f"User:{number}") for number in range(1_000)} == set(ACL_DOCUMENTS)
    assert len(ACL_DOCUMENTS) == BUCKETS


def test_what_is_written_is_read_again() -> None:
    rules = {rule(name=name) for name in ("a", "é", 'quote"', "\u3000")} | {
        rule(effect=Effect.DENY),
        rule(prefix=True, name=""),
        rule(name="of/nothing"),
        rule(kind=Kind.CLUSTER, operation=Operation.ACLS, name="cluster"),
    }
    name = document_of("User:etl")
    assert load(name, dump(rules)) == rules
    assert dump(rules) == dump(sorted(rules, reverse=True)), "the same rules are the same bytes"


def test_rules_for_patterns_of_an_earlier_release_are_read_and_can_be_removed() -> None:
    name = document_of("User:etl-*")
    data = b'{"rules":[["User:etl-*","deny","Read","Topic","t","literal"]]}'
    [former] = load(name, data)
    assert load(name, edited({name: (1, data)}, [], [former]).changes[name][1]) == frozenset()


def test_rules_come_and_go_one_by_one_and_leave_the_others() -> None:
    rng = random.Random(5)
    people = [f"User:{number}" for number in range(20)] + ["*"]
    kept: set[Rule] = set()
    documents = SecurityDocuments()
    for _ in range(300):
        add = {rule(rng.choice(people), name=str(rng.randrange(5))) for _ in range(rng.randrange(3))}
        remove = {rule(rng.choice(people), name=str(rng.randrange(5))) for _ in range(rng.randrange(3))}
        edit = edited(documents.documents, add, remove)
        after = (kept - remove) | add
        assert (edit.added, edit.removed) == (len(after - kept), len(kept - after))
        assert bool(edit.changes) is (after != kept), "what changes nothing writes nothing"
        assert all(documents.documents.get(name, (-1,))[0] == known for name, (known, _) in edit.changes.items())
        written = {name: (known + 1, data) for name, (known, data) in edit.changes.items()}
        documents, kept = SecurityDocuments(0, {**documents.documents, **written}), after
        assert all_rules(documents) == kept


def test_what_replaces_a_rule_wins_over_what_takes_it_away() -> None:
    edit = edited({}, [rule()], [rule()])
    assert (edit.added, edit.removed, len(edit.changes)) == (1, 0, 1)


GOOD = ["User:etl", "allow", "Read", "Topic", "t", "literal"]


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "{}",
        '{"rules": 1}',
        '{"rules": [[]]}',
        json.dumps({"rules": [GOOD], "more": 1}),
        "[" * 100_000,
        b"\xff",
        *(
            json.dumps({"rules": [GOOD, [*GOOD[:place], value, *GOOD[place + 1 :]]]})
            for place, value in [
                (0, "etl"),
                (0, "Broker:1"),
                (0, 1),
                (0, "User:somebody-else"),
                (1, "perhaps"),
                (2, "Abort"),
                (2, "Fly"),
                (3, "Column"),
                (4, 1),
                (4, ""),
                (4, "a\nb"),
                (5, "regex"),
                (5, True),
            ]
        ),
        json.dumps({"rules": [[*GOOD, "more"]]}),
    ],
)
def test_a_document_that_is_not_ours_is_not_believed_in_part(document: str | bytes) -> None:
    data = document.encode() if isinstance(document, str) else document
    name = document_of("User:etl")
    with pytest.raises(CoordinationUnavailable, match=f"the security document {name} does not hold rules"):
        load(name, data)
    with pytest.raises(CoordinationUnavailable, match="put back what was there"):
        edited({name: (3, data)}, [rule()], [])
