"""The table of rights: every method has a row, and every name in a request is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import (
    CLUSTER_NAME,
    OPERATIONS,
    RIGHTS,
    Kind,
    Need,
    Operation,
    check_pair,
    command,
    parse_kind,
    parse_operation,
    rights_table,
    row_of,
)
from mq_protocol.errors import InvalidRequest, InvalidSetting
from mq_protocol.methods import BROKER, Method

NAMES = {"topic", "topics", "group", "name", "query_id"}
"""What fields are called that name a resource."""

ELSEWHERE = {
    ("Metadata", "topics"): "the handler leaves out what may not be described",
    ("Metadata", "after"): "a place in a list",
    ("Groups", "group"): "the handler leaves out what may not be described",
    ("Groups", "after.topic"): "a place in a list",
    ("Staged", "after.topic"): "a place in a list",
    ("StartMoves", "moves.topic"): "whoever may alter the cluster moves every topic",
    ("Lead", "topic"): "whoever may alter the cluster moves every topic",
    ("Recover", "topic"): "whoever may alter the cluster moves every topic",
    ("Observe", "topics"): "the handler leaves out what may not be described",
    ("Acls", "after.name"): "a place in a list",
    ("AlterAcls", "add.name"): "whoever may change rules may change all",
    ("AlterAcls", "remove.name"): "whoever may change rules may change all",
    ("CheckAcl", "name"): "whoever may change rules may ask about all",
    ("Subscribe", "close.partitions.topic"): "only what this stream has opened is closed",
    ("Subscribe", "settled.topic"): "only what this stream has opened is settled",
    ("Produce", "header.topic"): "judged by the header",
    ("Produce", "header.stage.key.query_id"): "judged by the header",
    ("AlterQueue", "group"): "by the kind of change",
}
"""Names that no need reads, and why that is right."""


def paths(described: Any, prefix: str = "") -> Iterator[str]:
    """Of every text in a message."""
    for field in described.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None:
            yield from paths(field.message_type, f"{prefix}{field.name}.")
        elif field.type == field.TYPE_STRING:
            yield prefix + field.name


def named(request: type[Message], path: str, value: str) -> Any:
    """A request that has the value there."""
    message = request()
    at: Any = message
    *way, last = path.split(".")
    for step in way:
        at = getattr(at, step)
        if hasattr(at, "add"):
            at = at.add()
    if hasattr(getattr(at, last), "append"):
        getattr(at, last).append(value)
    else:
        setattr(at, last, value)
    return message


def request_of(method: Method) -> type[Message]:
    return pb.ProduceHeader if method.name == "Produce" else method.request


def test_every_method_has_a_row_and_no_row_is_without_a_method() -> None:
    assert RIGHTS.keys() == BROKER.methods.keys()
    assert [name for name, row in RIGHTS.items() if not row.needs and not row.shows] == []


def test_a_method_without_a_row_is_not_served() -> None:
    with pytest.raises(LookupError, match="NewMethod has no row"):
        row_of("NewMethod")


@pytest.mark.parametrize("method", BROKER.methods.values(), ids=lambda method: method.name)
def test_every_name_in_a_request_is_read_by_a_need_or_is_known_not_to_need_one(method: Method) -> None:
    row = RIGHTS[method.name]
    for path in paths(method.request.DESCRIPTOR):
        if path.rpartition(".")[2] not in NAMES or (method.name, path) in ELSEWHERE:
            continue
        request = named(method.request, path, "marker")
        found = [name for need in row.needs if need.names is not None for name in need.names(request)]
        assert "marker" in found, f"{method.name}: nobody looks at {path}"


def test_no_exception_is_made_for_what_is_not_there() -> None:
    for name, path in ELSEWHERE:
        assert path in set(paths(BROKER.methods[name].request.DESCRIPTOR)), (name, path)


@pytest.mark.parametrize("method", BROKER.methods.values(), ids=lambda method: method.name)
def test_a_need_reads_the_field_that_it_says(method: Method) -> None:
    request = request_of(method)
    for need in RIGHTS[method.name].needs:
        if need.of in set(paths(request.DESCRIPTOR)):
            assert need.names is not None
            assert "marker" in list(need.names(named(request, need.of, "marker"))), str(need)


def test_two_names_in_a_list_are_both_read() -> None:
    request = pb.WorkRequest(sessions=[pb.SessionRequest()])
    for topics in (["a", "b"], ["c"]):
        request.sessions[0].settles.add(outputs=[pb.StagedBatches(topic=topic) for topic in topics])
    outputs = RIGHTS["Work"].needs[-1]
    assert outputs.names is not None
    assert list(outputs.names(request)) == ["a", "b", "c"]


def _needed(request: pb.AlterQueueRequest) -> set[tuple[str, str, str]]:
    return {
        (need.kind, need.operation, name)
        for need in RIGHTS["AlterQueue"].needs
        if need.names is not None
        for name in need.names(request)
    }


@pytest.mark.parametrize(
    ("change", "settings", "operation", "written"),
    [
        (pb.QUEUE_DECLARE, {}, "Create", {"t.dead"}),
        (pb.QUEUE_DECLARE, {"dead_letter": ""}, "Create", {"t.dead"}),
        (pb.QUEUE_DECLARE, {"dead_letter": "park"}, "Create", set()),
        (pb.QUEUE_DECLARE, {"dead_letter": "victim"}, "Create", {"victim"}),
        (pb.QUEUE_ALTER, {}, "Alter", set()),
        (pb.QUEUE_ALTER, {"dead_letter": ""}, "Alter", {"t.dead"}),
        (pb.QUEUE_ALTER, {"dead_letter": "victim"}, "Alter", {"victim"}),
        (pb.QUEUE_ALTER, {"dead_letter": "drop"}, "Alter", set()),
        (pb.QUEUE_DELETE, {"dead_letter": "victim"}, "Delete", set()),
        (77, {}, "Delete", set()),
    ],
)
def test_what_a_change_of_a_queue_group_needs(
    change: Any, settings: dict[str, str], operation: str, written: set[str]
) -> None:
    needed = _needed(pb.AlterQueueRequest(topic="t", group="g", change=change, settings=settings))
    reads = {("Topic", "Read", "t")} if change == pb.QUEUE_DECLARE else set()
    assert needed == {
        ("Group", operation, "g"),
        ("Topic", "Describe", "t"),
        *reads,
        *(("Topic", "Write", topic) for topic in written),
    }


def test_an_upgrade_needs_less_if_it_is_only_planned() -> None:
    def of(*, plan: bool) -> list[str]:
        request = pb.UpgradeRequest(plan=plan)
        return [need.operation for need in RIGHTS["Upgrade"].needs if need.names is not None and need.names(request)]

    assert of(plan=True) == ["Describe"]
    assert of(plan=False) == ["Describe", "Alter"]


def test_every_need_is_of_an_operation_that_the_kind_has() -> None:
    needs: list[Need] = [need for row in RIGHTS.values() for need in row.needs]
    for need in needs:
        check_pair(need.kind, need.operation)
    for row in RIGHTS.values():
        for kind, operation in row.shows:
            check_pair(kind, operation)


def test_what_a_kind_of_resource_cannot_be_asked_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="Group has no operation Abort: it has Describe, Read"):
        check_pair(Kind.GROUP, Operation.ABORT)
    with pytest.raises(InvalidSetting, match="'Gruop' is no kind of resource: one of Topic, Group"):
        parse_kind("Gruop")
    with pytest.raises(InvalidSetting, match="'reed' is no operation: one of Describe"):
        parse_operation("reed")
    assert (parse_kind("Lock"), parse_operation("Acls")) == (Kind.LOCK, Operation.ACLS)
    assert set(OPERATIONS) == set(Kind)


def test_the_table_says_in_words_what_each_method_needs() -> None:
    said = dict(rights_table())
    assert said.keys() == BROKER.methods.keys()
    assert said["Fetch"] == "Topic Read (topic)"
    assert said["Lead"] == "Cluster Alter"
    assert said["Groups"].startswith("only what the asker has Topic Describe and Group Describe on")


@pytest.mark.parametrize(
    ("said", "written"),
    [
        (("allow", "User:etl", Operation.READ, Kind.TOPIC, "t"), "tritonmq acl allow User:etl --read --topic t"),
        (("allow", "*", Operation.WRITE, Kind.LOCK, "a b*"), "tritonmq acl allow '*' --write --lock 'a b*' --literal"),
        (
            ("deny", "User:a", Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME),
            "tritonmq acl deny User:a --alter --cluster",
        ),
    ],
)
def test_the_command_that_would_allow_it_can_be_pasted(said: tuple[Any, ...], written: str) -> None:
    assert command(*said) == written


def test_the_command_about_a_prefix_or_a_denial_says_so() -> None:
    assert command("remove", "User:e", Operation.READ, Kind.TOPIC, "t-", prefix=True, deny=True) == (
        "tritonmq acl remove User:e --read --topic 't-*' --deny"
    )
