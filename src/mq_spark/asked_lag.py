"""How far behind one query is, asked once: of the brokers, who know it as a group."""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

from mq_client import Admin, GroupDescription, InvalidRequest, UnknownGroup
from mq_client.security import Security
from mq_protocol.names import did_you_mean, quoted, usable_label
from mq_spark.lag import QueryLag, TopicLag

_NAMED_MAX: Final = 5
"""So many groups of one name are told in an error."""


class Query(Protocol):
    """A streaming query, Spark Connect's too."""

    @property
    def id(self) -> Any: ...
    @property
    def runId(self) -> Any: ...  # noqa: N802 - Spark's name
    @property
    def name(self) -> str | None: ...
    @property
    def isActive(self) -> bool: ...  # noqa: N802
    @property
    def lastProgress(self) -> Any: ...  # noqa: N802


def lag_of(
    query: Query | str,
    bootstrap: str,
    *,
    group_prefix: str = "spark",
    timeout_ms: float = 5_000,
    security: Security | None = None,
    forward: bool | None = None,
) -> QueryLag:
    """How far behind a query is: `lag_of(query, "host:7400").seconds`.

    `query`: a `StreamingQuery`, or the name of one (`queryName`), or of a group (`kafka.group.id`). By name it is found
    wherever it runs, and after it has ended; `run_id`, `batch_id` and `running` are not known then. What its tasks have
    read counts, which they tell at most twice a second. `group_prefix`: the source's option groupIdPrefix.

    Raises `UnknownGroup` if no broker has heard of it, `InvalidRequest` if several have that name, `Unreachable`.
    """
    with Admin(bootstrap, timeout_ms, security, forward=forward) as admin:
        if isinstance(query, str):
            return _measured(_named(query, admin.describe_groups()), group_prefix, name=query)
        found = admin.describe_group(f"{group_prefix}-{query.id}")
    progress = query.lastProgress
    return _measured(
        found, group_prefix, name=query.name, run_id=str(query.runId), running=query.isActive,
        batch_id=progress.batchId if progress is not None else -1,
    )  # fmt: skip


def _named(name: str, groups: list[GroupDescription]) -> GroupDescription:
    found = [group for group in groups if group.label and group.label == usable_label(name)]
    found = found or [group for group in groups if group.name == name]
    if not found:
        known = {group.label or group.name for group in groups}
        raise UnknownGroup(
            f"no broker has heard of a query called {quoted(name)}{did_you_mean(name, known)}: `tritonmq group list` "
            "shows those that brokers know; they learn a name with the first micro-batch that reads"
        )
    if len(found) > 1:
        names = ", ".join(group.name for group in found[:_NAMED_MAX])
        raise InvalidRequest(f"{len(found)} queries are called {quoted(name)}: give the group of one of them: {names}")
    return found[0]


def _measured(
    found: GroupDescription,
    group_prefix: str,
    *,
    name: str | None,
    run_id: str = "",
    running: bool | None = None,
    batch_id: int = -1,
) -> QueryLag:
    topics = sorted({cursor.topic for cursor in found.cursors})
    return QueryLag(
        query_id=found.name.removeprefix(f"{group_prefix}-"),
        run_id=run_id,
        name=name,
        group=found.name,
        batch_id=batch_id,
        running=running,
        measured_us=time.time_ns() // 1000,
        topics=tuple(TopicLag(topic, tuple(c for c in found.cursors if c.topic == topic)) for topic in topics),
    )
