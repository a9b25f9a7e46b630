"""An observation and what this process counts, as text that Prometheus reads (format 0.0.4).

The one module that knows prometheus_client, which tells of the process and of its garbage collector. The lines of
topics, groups and partitions are written here: for 10,000 partitions the library takes fifteen times as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple

from prometheus_client import REGISTRY, generate_latest

from mq_broker import measured
from mq_broker.broker.metrics.observation import Observation, QueueRow
from mq_process.measures import BUCKETS_S, Counts, Durations
from mq_protocol import mq_pb2 as pb
from mq_protocol.observed import add_group, add_topic

LINES_AT_ONCE: Final = 200
"""Lines that are written before others have their turn."""

TOPICS_MAX: Final = 2_000
GROUPS_MAX: Final = 2_000
"""So many have lines of their own, in order of name; the rest is told as one, named `_other`."""

GROUP_IDLE_S: Final = 30 * 86_400
"""A group whose cursor has not moved for so long is forgotten here: that of a stopped query must alarm, and not cost
for ever."""

OTHER: Final = "_other"

_VALUES: Final = {
    "disk_free_bytes": "Room on the file system of the data directory.",
    "disk_size_bytes": "The size of the file system of the data directory.",
    "broker_ready": "Whether this broker is to be sent work: all that it holds is open, and has been in sync.",
    "brokers_live": "Brokers that are registered, as this one sees it.",
    "partitions_without_leader": "Partitions that have no leader that lives and serves, as far as this broker knows.",
    "partitions_under_replicated": "Partitions led here with a replica that is not in sync.",
    "partitions_at_min_isr": "Partitions led here that refuse writes if one more replica is lost.",
    "partitions_under_min_isr": "Partitions led here that refuse writes.",
    "partitions_moving": "Partitions led here that are on their way to other brokers.",
    "partitions_without_key": "Replicas here that stay closed: the key that seals them is missing or wrong.",
    "partitions_altered": "Replicas here that stay closed: they were altered on the disk.",
    "unscrubbed_bytes": "Stored bytes that were not read since their journal was opened; the scrub verifies them.",
    "partitions_awake": "Replicas here that are ticked often.",
    "replica_unheard_seconds": "For how long nothing was heard of a replica that is not in sync and led from here.",
    "writer_queue_bytes": "What waits for the thread that writes the journals.",
    "writer_queue_bytes_max": "Above it producers wait.",
    "writer_queue_orders": "Orders that wait for that thread.",
    "writer_queue_orders_max": "Above it producers wait.",
    "frame_cache_bytes": "Entries that are kept in memory for followers and consumers.",
    "client_memory_bytes": "What is held for clients' streams.",
    "client_memory_bytes_max": "Above it streams that hold much are not read.",
    "sink_unpublished": "Micro-batches that are decided here and not published yet.",
    "sink_unpublished_age_seconds": "How long ago the first of them was decided, or this broker began to lead it.",
    "retention_held_up": "Transactions with staged batches that keep a journal led here from being shortened.",
    "observation_seconds": "How long the last gathering of all this took.",
}
_ROLES: Final = ("leader", "follower")


class Family(NamedTuple):
    """A metric of rows: its kind, its help, and a row's value (None: no line)."""

    name: str
    kind: str
    text: str
    value: Callable[[Any, int], float | None]


def _age_s(since_us: int, now_us: int) -> float:
    return max(0, now_us - since_us) / 1e6 if since_us else 0.0


_TOPICS: Final = (
    Family("topic_records", "gauge", "Records that are kept.", lambda row, _: row.records),
    Family("topic_bytes", "gauge", "Their bytes as stored.", lambda row, _: row.bytes),
    Family(
        "topic_retention_seconds", "gauge", "The topic's retention_ms; no line if records are kept for ever.",
        lambda row, _: row.retention_ms / 1000 if row.HasField("retention_ms") else None,
    ),
    Family("topic_staged_batches", "gauge", "Batches of transactions that nobody can read yet.",
           lambda row, _: row.staged_batches),
    Family("topic_staged_age_seconds", "gauge", "How long ago the first of them was staged.",
           lambda row, now: _age_s(row.oldest_staged_us, now)),
)  # fmt: skip
_GROUP_LAGS: Final = (
    Family("group_lag_records", "gauge", "Records behind the group's cursors.", lambda row, _: row.lag),
    Family("group_lag_bytes", "gauge", "Their bytes as stored.", lambda row, _: row.lag_bytes),
    Family("group_lag_seconds", "gauge", "How old the oldest of them is.", lambda row, _: row.lag_us / 1e6),
)  # fmt: skip
_GROUPS: Final = (
    Family("group_members", "gauge", "Members that may be given partitions led here.",
           lambda row, _: row.members),
    Family("group_moved_timestamp_seconds", "gauge", "When one of its cursors moved last, since 1970.",
           lambda row, _: row.moved_us / 1e6),
)  # fmt: skip
_PARTITIONS: Final = (
    Family("partition_leader_epoch", "gauge", "Its leadership's number.", lambda row, _: row.leader_epoch),
    Family("partition_isr", "gauge", "Replicas in sync.", lambda row, _: len(row.isr)),
    Family("partition_log_start_offset", "gauge", "First offset that is kept.", lambda row, _: row.log_start_offset),
    Family("partition_log_end_offset", "gauge", "Next offset to be given.", lambda row, _: row.log_end_offset),
    Family("partition_high_watermark", "gauge", "Last entry of its journal that is committed.",
           lambda row, _: row.high_watermark),
    Family("partition_size_bytes", "gauge", "Bytes of its records as stored.", lambda row, _: row.size_bytes),
)  # fmt: skip
_QUEUE_STATES: Final = ("ready", "leased", "delayed", "doomed", "parked")


_NOTHING: Final = ""
"""Yielded in place of a line for each row that is looked at before any is told, since rows are counted as lines are."""


async def exposition(observation: Observation, detail: int) -> list[bytes]:
    """All that there is to tell in that `pb.Detail`, in pieces: megabytes take milliseconds to join, to let go of and
    to send. Others have their turn while it is written."""
    pieces: list[bytes] = []
    lines: list[str] = []
    for line in _lines(observation, detail):
        lines.append(line)
        if len(lines) == LINES_AT_ONCE:
            pieces.append("".join(lines).encode())
            lines.clear()
            await asyncio.sleep(0)
    pieces.append("".join(lines).encode())
    await asyncio.sleep(0)
    return [*filter(None, pieces), bytes(generate_latest(REGISTRY))]


def _lines(observation: Observation, detail: int) -> Iterator[str]:
    topics = {row.name for row in observation.topics}
    yield from _broker(observation)
    told = {row.name for row in observation.topics[:TOPICS_MAX]}
    for instrument in measured.ALL:
        if instrument in measured.OF_TOPICS:
            if detail >= pb.TOPICS:
                yield from _counts(instrument, _few(instrument.rows(), topics, told))
        elif isinstance(instrument, Durations):
            yield from _durations(instrument)
        else:
            yield from _counts(instrument, instrument.rows())
    left_out = {"topics": max(0, len(topics) - TOPICS_MAX), "cursors": observation.left_out}
    if detail >= pb.TOPICS:
        topic_rows: list[tuple[str, pb.ObservedTopic]] = []
        yield from _topic_rows(observation.topics, topic_rows)
        yield from _rows(_TOPICS, topic_rows, observation.now_us)
        groups, left_out["groups"], left_out["idle_groups"] = _group_rows(observation)
        labelled = [(f'{labels},label="{_label(row.label)}"' if row.label else labels, row) for labels, row in groups]
        yield from _rows(_GROUP_LAGS, labelled, observation.now_us)
        yield from _rows(_GROUPS, groups, observation.now_us)
        yield from _queues(observation)
    yield _head("metrics_left_out", "gauge", "What has no line of its own here.")
    yield from (_line("metrics_left_out", f'what="{what}"', count) for what, count in left_out.items())
    if detail >= pb.PARTITIONS:
        led = []
        for row in observation.partitions:
            if row.leads:
                led.append((f'topic="{_label(row.topic)}",partition="{row.partition}"', row))
            yield _NOTHING
        yield from _rows(_PARTITIONS, led, observation.now_us)


def _broker(seen: Observation) -> Iterator[str]:
    yield _head("broker_info", "gauge", "Always 1: which broker this is.")
    labels = {
        "broker": seen.broker, "cluster": seen.cluster_id, "version": seen.version, "rack": seen.rack,
        "incarnation": seen.incarnation,
    }  # fmt: skip
    yield _line("broker_info", ",".join(f'{name}="{_label(str(value))}"' for name, value in labels.items()), 1)
    yield _head("broker_state", "gauge", "1 for the state that the broker is in.")
    for state in ("starting", "serving", "draining"):
        yield _line("broker_state", f'state="{state}"', seen.state == state)
    yield _head("coordination_state", "gauge", "1 for the state of the session with ZooKeeper; file: there is none.")
    for state in ("connected", "suspended", "file"):
        yield _line("coordination_state", f'state="{state}"', seen.coordination == state)
    yield _head("partitions", "gauge", "Replicas that are open here.")
    for role in _ROLES:
        yield _line("partitions", f'role="{role}"', seen.values[f"partitions_{role}"])
    for name, text in _VALUES.items():
        if name in seen.values:
            yield _head(name, "gauge", text)
            yield _line(name, "", seen.values[name])
    yield _head("link_up", "gauge", "Whether there is a link to that broker.")
    yield from (_line("link_up", f'peer="{peer}"', up) for peer, up in seen.links.items())


def _few(rows: Mapping[tuple[str, ...], float], topics: set[str], told: set[str]) -> dict[tuple[str, ...], float]:
    """Those of topics that are here: each by itself, or all the rest as one."""
    few: dict[tuple[str, ...], float] = {}
    for values, count in rows.items():
        if values[0] in topics:
            place = (values[0] if values[0] in told else OTHER, *values[1:])
            few[place] = few.get(place, 0) + count
    return few


def _topic_rows(topics: list[pb.ObservedTopic], rows: list[tuple[str, pb.ObservedTopic]]) -> Iterator[str]:
    """Adds those of topics that are led here to `rows`."""
    rest = pb.ObservedTopic(name=OTHER)
    for place, row in enumerate(topics):
        if place >= TOPICS_MAX:
            add_topic(rest, row)
        elif row.led:
            rows.append((f'topic="{_label(row.name)}"', row))
        yield _NOTHING
    if rest.led:
        rows.append((f'topic="{OTHER}"', rest))


def _group_rows(seen: Observation) -> tuple[list[tuple[str, pb.ObservedGroup]], int, int]:
    """The rows, how many are told as one, and how many have been idle for too long."""
    idle_us = seen.now_us - GROUP_IDLE_S * 1_000_000
    busy = sorted((row for row in seen.groups if row.moved_us > idle_us), key=lambda row: (row.group, row.topic))
    rows, rest = busy[:GROUPS_MAX], busy[GROUPS_MAX:]
    if rest:
        other = pb.ObservedGroup(group=OTHER, topic=OTHER)
        for row in rest:
            add_group(other, row)
        other.label = ""
        rows.append(other)
    told = [(f'group="{_label(row.group)}",topic="{_label(row.topic)}"', row) for row in rows]
    return told, len(rest), len(seen.groups) - len(busy)


def _queues(seen: Observation) -> Iterator[str]:
    rows = sorted(seen.queues, key=lambda row: (row.topic, row.group))[:GROUPS_MAX]
    placed = [(f'topic="{_label(row.topic)}",group="{_label(row.group)}"', row) for row in rows]
    yield _head("queue_records", "gauge", "Records of a queue group that are not settled, by their state.")
    for labels, row in placed:
        for state in _QUEUE_STATES:
            yield _line("queue_records", f'{labels},state="{state}"', getattr(row, state))
    yield _head("queue_settled_total", "counter", "Records that were settled since the group was made; dropped: why.")
    for labels, row in placed:
        for outcome, count in row.settled.items():
            yield _line("queue_settled_total", f'{labels},outcome="{outcome}"', count)
    single: tuple[tuple[str, str, Callable[[QueueRow], float]], ...] = (
        ("queue_oldest_ready_seconds", "How long the first record that is ready has been in the topic.",
         lambda row: _age_s(row.oldest_ready_us, seen.now_us)),
        ("queue_stuck", "Partitions in which the group stands still although it has work.", lambda row: row.stuck),
    )  # fmt: skip
    for name, text, value in single:
        yield _head(name, "gauge", text)
        yield from (_line(name, labels, value(row)) for labels, row in placed)


def _rows(families: Iterable[Family], rows: list[tuple[str, Any]], now_us: int) -> Iterator[str]:
    for family in families:
        yield _head(family.name, family.kind, family.text)
        for labels, row in rows:
            value = family.value(row, now_us)
            if value is not None:
                yield _line(family.name, labels, value)


def _counts(instrument: Counts, rows: Mapping[tuple[str, ...], float]) -> Iterator[str]:
    yield _head(instrument.name, "gauge" if instrument in measured.GAUGES else "counter", instrument.text)
    for values, count in rows.items():
        pairs = zip(instrument.labels, values, strict=True)
        yield _line(instrument.name, ",".join(f'{name}="{_label(value)}"' for name, value in pairs), count)


def _durations(instrument: Durations) -> Iterator[str]:
    name = instrument.name
    yield _head(name, "histogram", instrument.text)
    for value, row in instrument.rows().items():
        labels = f'{instrument.labels[0]}="{_label(value)}",' if instrument.labels else ""
        sum_s, upto = row.sum_s, list(accumulate(row.counts))
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), upto, strict=True):
            yield _line(f"{name}_bucket", f'{labels}le="{bound}"', count)
        yield _line(f"{name}_sum", labels.rstrip(","), sum_s)
        yield _line(f"{name}_count", labels.rstrip(","), upto[-1])


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP tritonmq_{name} {text}\n# TYPE tritonmq_{name} {kind}\n"


def _line(name: str, labels: str, value: float) -> str:
    return f"tritonmq_{name}{{{labels}}} {value + 0}\n" if labels else f"tritonmq_{name} {value + 0}\n"


def _label(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
