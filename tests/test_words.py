"""One name for one thing: what a broker observes is called alike in `Observe`, in Python, in metrics, on the console's
pages and in its JSON, and in what commands write as JSON.

A name may end in its unit, and the unit may differ: Prometheus wants seconds where the others have microseconds. All
other differences are in the tables here, each with its reason; one that is not there any more fails too.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from mq_broker.broker.metrics import exposition
from mq_broker.broker.metrics.observation import GroupRow, PartitionRow, TopicRow
from mq_broker.broker.metrics.observing import _COUNTED
from mq_cli import group as group_command
from mq_cli import topic as topic_command
from mq_cli.cluster import ClusterSummary
from mq_client import ClusterDescription, PartitionDescription, TopicDescription
from mq_client.observation import GroupObservation, PartitionObservation, TopicObservation
from mq_console import views
from mq_protocol import mq_pb2 as pb

UNIT = re.compile(r"_(timestamp_seconds|seconds|records|bytes|us|ms)$")

CALLED: dict[str, dict[str, str]] = {
    "metrics": {
        "staged_age": "oldest_staged",  # Prometheus wants an age: the time of an event cannot be compared with `now`
    },
    "command": {
        "reads_as": "kind",  # of a whole group: several, if its cursors differ
        "member": "members",  # the one of them that has the partition
    },
}
"""In each face: another name, and the observation's name for the same thing."""

BESIDE: dict[tuple[str, str], set[str]] = {
    ("metrics", "topic"): {"retention"},  # a setting, which an alert compares with lag
    # Counts of the topic's partitions, and what is made of two observations
    ("console", "topic"): {
        "partitions", "partitions_without_leader", "partitions_not_fully_in_sync", "records_in_per_second",
    },
    ("console", "group"): {"catching_up_s"},
    ("console's page", "topic"): {"partitions", "records_in_per_second", "trend", "partitions_in_need"},
    ("console's page", "group"): {"catching_up_s", "trend"},
    ("command", "topic"): {"topic_id", "schema", "settings", "partitions"},
    # Where a group is in one partition, and who did not answer
    ("command", "group"): {"name", "topics", "silent", "partition", "offset", "log_end_offset", "leads"},
}  # fmt: skip
"""In each face: names of what is no field of an observation."""

UNTOLD: dict[tuple[str, str], set[str]] = {
    ("metrics", "topic"): {"name", "led"},
    # Names and lists are labels, or no numbers; the rest is told of topics
    ("metrics", "partition"): {
        "topic", "partition", "told_by", "leads", "leader", "replicas", "moving_to", "unheard", "staged_batches",
        "oldest_staged",
    },
    ("metrics", "group"): {"group", "topic", "kind", "label"},
    ("console", "topic"): {"led", "oldest_staged"},
    ("console's page", "topic"): {"led", "oldest_staged"},
    # Moves and dead brokers have pages of their own, it is the page of one topic, and replicas show which are in sync
    ("console's page", "partition"): {
        "topic", "isr", "told_by", "leads", "moving_to", "high_watermark", "oldest_staged", "unheard",
    },
    ("console's page", "group"): {"label"},  # beside the group's name, in its column
    # `topic list` tells how partitions are placed; what they hold is in `topic describe`
    ("command", "topic"): {"led", "records", "bytes", "staged_batches", "oldest_staged"},
    ("command", "partition"): {
        "topic", "told_by", "leads", "moving_to", "log_start_offset", "log_end_offset", "high_watermark", "size",
        "staged_batches", "oldest_staged", "unheard",
    },
    ("command", "group"): {"group"},  # `name`
}  # fmt: skip
"""In each face: fields that it does not show."""

OBSERVED: dict[str, tuple[Any, Any, Any]] = {
    "topic": (TopicObservation, TopicRow, pb.ObservedTopics),
    "partition": (PartitionObservation, PartitionRow, pb.ObservedPartitions),
    "group": (GroupObservation, GroupRow, pb.ObservedGroups),
}


def base(name: str) -> str:
    return UNIT.sub("", name)


def canonical(kind: str) -> set[str]:
    return {base(each.name) for each in fields(OBSERVED[kind][0])}


def metrics(kind: str) -> set[str]:
    families = {
        "topic": exposition._TOPICS,
        "partition": exposition._PARTITIONS,
        "group": (*exposition._GROUP_LAGS, *exposition._GROUPS),
    }[kind]
    # `topic_records` is a number of records: nothing is left without its unit
    names = [family.name.removeprefix(f"{kind}_") for family in families]
    assert all(family.name.startswith(f"{kind}_") for family in families)
    return {base(name) for name in names}


def console(kind: str) -> set[str]:
    rows = {"topic": views.Topic, "partition": PartitionObservation, "group": views.Group}[kind]
    return {base(each.name) for each in fields(rows)}


def columns(kind: str) -> set[str]:
    table: list[Any] = {
        "topic": views.TOPIC_COLUMNS,
        "partition": views.PARTITION_COLUMNS,
        "group": views.GROUP_COLUMNS,
    }[kind]  # type: ignore[assignment]
    return {base(column.name) for column in table}


def documents(kind: str) -> set[str]:
    """The keys of what commands write as JSON of such a thing."""
    found = {
        "topic": topic_command.COLUMNS,
        "partition": topic_command.PARTITION_COLUMNS,
        "group": (*group_command.COLUMNS, *group_command.cursor_columns({})),
    }[kind]
    return {base(column.name) for column in found if column.name}


FACES = {"metrics": metrics, "console": console, "console's page": columns, "command": documents}


@pytest.mark.parametrize("kind", OBSERVED)
def test_the_answer_of_observe_and_the_brokers_rows_have_the_clients_names(kind: str) -> None:
    client, row, message = OBSERVED[kind]
    theirs = {each.name for each in fields(client)}
    wire = set(message.DESCRIPTOR.fields_by_name)
    # Lists are two columns, how many and all in one; who tells is the answer's
    flat = {name for name in wire if name.endswith("_count") or name == "unheard"}
    assert wire - flat == theirs - {"told_by"}
    own = set(row._fields) if kind == "partition" else {each.name for each in fields(row)}
    assert own - theirs == ({"retention_ms"} if kind == "topic" else set())
    assert theirs - own == ({"told_by"} if kind == "partition" else set())


@pytest.mark.parametrize("kind", OBSERVED)
@pytest.mark.parametrize("face", FACES)
def test_every_face_calls_a_thing_by_the_observations_name(face: str, kind: str) -> None:
    called = {CALLED.get(face, {}).get(name, name) for name in FACES[face](kind)}
    assert called - canonical(kind) == BESIDE.get((face, kind), set())


@pytest.mark.parametrize("kind", OBSERVED)
@pytest.mark.parametrize("face", FACES)
def test_every_face_shows_all_that_is_observed_but_what_is_named_here(face: str, kind: str) -> None:
    found = FACES[face](kind)
    shown = found | {CALLED.get(face, {}).get(name, name) for name in found}
    assert canonical(kind) - shown == UNTOLD.get((face, kind), set())


def test_no_other_name_is_allowed_that_is_not_used() -> None:
    for face, names in CALLED.items():
        assert names.keys() <= set().union(*(FACES[face](kind) for kind in OBSERVED)), face


def test_numbers_of_a_broker_are_called_alike_in_metrics_the_summary_and_pages() -> None:
    """`cluster status` counts partitions of the whole cluster, a broker those that it knows: where it is the same thing
    it has the same name."""
    partition = PartitionDescription(0, 0, 1, (1, 2), (1,))
    topic: Any = TopicDescription("t", "id", None, False, {}, (partition,))  # type: ignore[arg-type]
    described: Any = ClusterDescription((), "file", ())  # type: ignore[arg-type]
    told = {name for name in ClusterSummary(described, [topic]).document() if name.startswith("partitions_")}
    shown = {each.name for each in fields(views.Topic) if each.name.startswith("partitions_")}
    # "Not fully in sync" is by the node, "under-replicated" by who lives too: a dead replica may be named in sync
    assert told - set(_COUNTED) == {"partitions_not_fully_in_sync"}
    assert shown - told == set()
    assert set(_COUNTED) - {"partitions_leader", "partitions_follower"} <= exposition._VALUES.keys()
