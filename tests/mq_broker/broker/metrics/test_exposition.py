"""An observation as Prometheus reads it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from mq_broker import measured
from mq_broker.broker.metrics import exposition as module
from mq_broker.broker.metrics.exposition import exposition
from mq_protocol import mq_pb2 as pb
from mq_protocol.versions import ours
from tests.mq_broker.broker.metrics.observed import observing, part

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def read(text: bytes) -> Samples:
    """Values by name without `tritonmq_` and labels, as the library's parser has them."""
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            rows = found.setdefault(sample.name.removeprefix("tritonmq_"), {})
            place = tuple(sorted(sample.labels.items()))
            assert place not in rows, f"{sample.name} {place} is there twice"
            rows[place] = sample.value
    return found


def told(data: Path, *parts: Any, detail: int = pb.PARTITIONS, now_us: int = 0, **labels: str) -> Samples:
    async def scenario() -> bytes:
        seen = await observing(data, *parts, members={"g": ["m1", "m2"]}, labels=labels)._gather()
        return b"".join(await exposition(replace(seen, now_us=now_us) if now_us else seen, detail))

    return read(asyncio.run(scenario()))


def of(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def test_a_broker_its_topics_groups_and_partitions_are_told(tmp_path: Path) -> None:
    parts = [
        part("t", 0, isr=(1,), cursors={"g": 90}, unheard_ms={2: 500, 3: 9_000}, retention_ms=60_000),
        part("t", 1, leader=2, serving=False),
        part("u", 0, cursors={"g": 99}),
    ]
    seen = told(tmp_path, *parts, now_us=1_000_000)
    assert seen["broker_info"] == {of(broker="1", cluster="c-1", version=ours().release, rack="r", incarnation="7"): 1}
    assert seen["broker_state"] == {of(state="starting"): 1, of(state="serving"): 0, of(state="draining"): 0}
    assert seen["partitions"] == {of(role="leader"): 2, of(role="follower"): 1}
    assert (seen["partitions_under_min_isr"][()], seen["replica_unheard_seconds"][()]) == (1, 9.0)
    assert seen["link_up"] == {of(peer="2"): 1, of(peer="3"): 0}
    assert seen["topic_records"] == {of(topic="t"): 90, of(topic="u"): 90}
    assert seen["topic_retention_seconds"] == {of(topic="t"): 60.0}
    assert seen["group_lag_records"] == {of(group="g", topic="t"): 10, of(group="g", topic="u"): 1}
    assert seen["group_members"] == {of(group="g", topic="t"): 2, of(group="g", topic="u"): 2}
    assert seen["partition_isr"] == {of(topic="t", partition="0"): 1, of(topic="u", partition="0"): 3}


def test_less_detail_is_fewer_lines_and_none_of_them_another(tmp_path: Path) -> None:
    measured.TOPIC_RECORDS_IN.add("t", n=3)
    try:
        all_of_it = told(tmp_path, part("t", 0, cursors={"g": 90}), now_us=1_000_000)
        topics = told(tmp_path, part("t", 0, cursors={"g": 90}), now_us=1_000_000, detail=pb.TOPICS)
        broker = told(tmp_path, part("t", 0, cursors={"g": 90}), now_us=1_000_000, detail=pb.BROKER)
    finally:
        measured.TOPIC_RECORDS_IN.keep(())
    assert {name for name in all_of_it if name not in topics} == {f"partition_{name}" for name in (
        "leader_epoch", "isr", "log_start_offset", "log_end_offset", "high_watermark", "size_bytes")}  # fmt: skip
    gone = {name for name in topics if name not in broker}
    assert {name.split("_")[0] for name in gone} == {"topic", "group"}
    assert {"topic_records_in_total", "topic_records", "group_lag_seconds"} <= gone


def test_names_cannot_forge_lines(tmp_path: Path) -> None:
    name = 'g"} 9\ntritonmq_forged 1\n\\'
    seen = told(tmp_path, part("t", 0, cursors={name: 90}), now_us=1_000_000)
    assert "forged" not in seen
    assert seen["group_lag_records"] == {of(group=name, topic="t"): 10}


def test_what_people_call_a_group_is_a_label_of_its_lag(tmp_path: Path) -> None:
    seen = told(tmp_path, part("t", 0, cursors={"q": 90, "g": 90}), now_us=1_000_000, q='or"ders')
    assert seen["group_lag_records"] == {of(group="q", topic="t", label='or"ders'): 10, of(group="g", topic="t"): 10}
    assert set(seen["group_lag_seconds"]) == set(seen["group_lag_bytes"]) == set(seen["group_lag_records"])
    assert set(seen["group_members"]) == {of(group="q", topic="t"), of(group="g", topic="t")}


def test_topics_and_groups_beyond_the_bound_are_told_as_one(tmp_path: Path) -> None:
    names = [f"t{number:04}" for number in range(module.TOPICS_MAX + 2)]
    half = module.GROUPS_MAX // 2
    parts = [part(name, 0, cursors={"f": 90, "g": 90} if at <= half else {}) for at, name in enumerate(names)]
    for name in (names[0], *names[-2:], "not here"):
        measured.TOPIC_BYTES_OUT.add(name, "fetch", n=5)
    try:
        seen = told(tmp_path, *parts, now_us=1_000_000)
    finally:
        measured.TOPIC_BYTES_OUT.keep(())
    assert seen["topic_records"] == {of(topic=name): 90 for name in names[:-2]} | {of(topic="_other"): 180}
    assert seen["topic_bytes_out_total"] == {of(topic=names[0], to="fetch"): 5, of(topic="_other", to="fetch"): 10}
    told_of = [("f", name) for name in names[: half + 1]] + [("g", name) for name in names[: half - 1]]
    assert seen["group_lag_records"] == {
        **{of(group=group, topic=name): 10 for group, name in told_of},
        of(group="_other", topic="_other"): 20,
    }
    assert seen["group_members"][of(group="_other", topic="_other")] == 2  # the same two
    assert seen["metrics_left_out"] == {
        of(what="topics"): 2, of(what="groups"): 2, of(what="idle_groups"): 0, of(what="cursors"): 0
    }  # fmt: skip


def test_a_group_that_has_not_moved_for_a_month_has_no_line(tmp_path: Path) -> None:
    parts = [part("t", 0, cursors={"old": 10, "new": 20})]  # they moved at 80 and 90 µs
    seen = told(tmp_path, *parts, now_us=85 + module.GROUP_IDLE_S * 1_000_000)
    assert seen["group_lag_records"] == {of(group="new", topic="t"): 80}
    assert seen["metrics_left_out"][of(what="idle_groups")] == 1


def test_a_histogram_is_told_by_its_cumulative_buckets(tmp_path: Path) -> None:
    row = measured.WRITER_ROUND.rows()[""]
    before = list(row.counts)
    for seconds in (0.0001, 0.003, 99.0):
        measured.WRITER_ROUND.add(seconds)
    seen = told(tmp_path, part())
    buckets = {dict(place)["le"]: value for place, value in seen["writer_round_seconds_bucket"].items()}
    assert buckets["0.00025"] == before[0] + 1
    assert buckets["0.005"] - buckets["0.0025"] == before[4] + 1
    assert buckets["+Inf"] == seen["writer_round_seconds_count"][()] == sum(before) + 3
    assert seen["writer_round_seconds_sum"][()] >= 99.0
