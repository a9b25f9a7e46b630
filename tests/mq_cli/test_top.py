"""`tritonmq top`: what it makes of two looks, what keys do, and that it leaves the terminal as it was."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mq_cli.machines import top
from mq_cli.machines.top import Wish, brokers, groups, topics
from mq_cli.managing.cluster import ClusterSummary
from mq_client import (
    BrokerDescription,
    BrokerObservation,
    ClusterDescription,
    ClusterObservation,
    GroupObservation,
    PartitionDescription,
    PartitionObservation,
    Producer,
    TopicDescription,
)
from mq_client.shown.looks import Look, problems
from mq_protocol.arrow import RECORD_SCHEMA
from tests.mq_broker.broker.cluster import standalone

BROKER = BrokerObservation(1, "b1:1", 1, "0.3.0", "serving", "connected", 1, {}, {})
DEADLINE_S = 60.0


def partition(topic: str, number: int = 0, end: int = 0, **changes: Any) -> PartitionObservation:
    fields: dict[str, Any] = {"leads": True, "leader": 1, "replicas": (1,), "isr": (1,), "unheard_ms": {}, **changes}
    return PartitionObservation(
        topic,
        number,
        told_by=1,
        leader_epoch=1,
        moving_to=(),
        log_start_offset=changes.get("start", 0),
        log_end_offset=end,
        high_watermark=1,
        size_bytes=changes.get("size", 0),
        staged_batches=0,
        oldest_staged_us=0,
        **{name: value for name, value in fields.items() if name not in ("start", "size")},
    )


def look(at_s: float, *partitions: PartitionObservation, **told: Any) -> Look:
    return Look(ClusterObservation("c", (BROKER,), partitions=partitions, **told), at_s)


def test_traffic_is_what_came_in_between_two_looks_also_after_retention() -> None:
    before = look(10.0, partition("a", 0, 100), partition("a", 1, 50), partition("b", 0, 7))
    after = look(
        12.0, partition("a", 0, 160, start=150), partition("a", 1, 60), partition("b", 0, 7), partition("n", 0, 9)
    )
    assert after.per_second(before) == {"a": 35.0, "b": 0.0}
    assert after.per_second(None) == {}
    assert look(13.0, partition("a", 0, 160)).per_second(after) == {"a": 0}  # the leader of the other did not answer
    again = look(14.0, partition("a", 0, 160), partition("a", 1, 10_000))  # it answers again: what came is not known
    assert again.per_second(look(13.0, partition("a", 0, 160))) == {"a": 0}
    assert after.kept == {"a": 70, "b": 7, "n": 9}


def test_the_brokers_own_topics_are_not_listed_and_count_as_they_do_in_cluster_status() -> None:
    own = partition("__transactions", 0, 9, replicas=(1, 2)), partition("__transactions", 1, leads=False, leader=0)
    seen = look(1.0, partition("a", 0, 5), partition("a", 1, 5), *own)
    assert [row[0] for row in topics(seen, None, Wish())[1]] == ["a"]
    assert [row[4] for row in brokers(seen)[1]] == [3]

    def described(name: str, *known: PartitionObservation) -> TopicDescription:
        partitions = (PartitionDescription(p.partition, p.leader, 1, p.replicas, p.isr) for p in known)
        return TopicDescription(name, name, RECORD_SCHEMA, False, {}, tuple(partitions))

    live = ClusterDescription((BrokerDescription(1, "b1:1", 1, ""),), "connected", 1)
    status = ClusterSummary(live, [described("__transactions", *own), described("a", *seen.partitions)])
    assert status.counts() == (
        "1 topic, 2 partitions and 2 of the brokers' own, 1 without a leader, 2 not fully in sync"
    )
    told = status.document()["brokers"][0]
    assert (seen.leads[1], seen.holds[1], seen.in_sync[1]) == (told["leads"], told["replicas"], told["in_sync"])
    assert [each.text for each in problems(seen) if each.kind == "brokers"] == status.wrong(())[:1]
    assert "1 partition without a leader" in status.wrong(())


@pytest.mark.parametrize(
    ("order", "names"),
    [("traffic", ["b", "a", "c"]), ("records", ["c", "a", "b"]), ("size", ["a", "c", "b"]), ("name", ["a", "b", "c"])],
)
def test_topics_are_sorted_as_asked_for(order: str, names: list[str]) -> None:
    before = look(0.0, partition("a", 0, 49), partition("b", 0, 1), partition("c", 0, 99))
    after = look(1.0, partition("a", 0, 50, size=9), partition("b", 0, 9, size=1), partition("c", 0, 99, size=5))
    assert [row[0] for row in topics(after, before, Wish(order))[1]] == names
    assert [row[0] for row in topics(after, before, Wish(order, only="b"))[1]] == ["b"]


def test_groups_that_are_furthest_behind_come_first() -> None:
    lags = [("g1", 5, 100), ("g2", 1, 9_000_000), ("g3", 9, 0)]
    told = tuple(GroupObservation(name, "t", "spark", 1, lag, 0, lag_us, 0) for name, lag, lag_us in lags)
    rows = groups(look(0.0, groups=told), Wish())[1]
    assert [(row[1], row[3], row[4]) for row in rows] == [("g2", "1", "9s"), ("g1", "5", "0s"), ("g3", "9", "0s")]
    assert [row[1] for row in groups(look(0.0, groups=told), Wish(only="3"))[1]] == ["g3"]
    named = (*told, GroupObservation("spark-1", "t", "spark", 1, 0, 0, 0, 0, "orders"))
    (row,) = groups(look(0.0, groups=named), Wish(only="orders"))[1]
    assert (row[0], row[1], row[-1]) == ("t", "orders", "spark-1"), "what people call it comes first"


def test_what_is_wrong_is_said() -> None:
    assert problems(look(0.0, partition("a"))) == []
    sick = look(
        0.0,
        partition("a", 0, leads=False, leader=0),
        partition("a", 1, replicas=(1, 2), unheard_ms={2: 61_000}),
        silent=("b2:1",),
    )
    assert [each.text for each in problems(sick)] == [
        "the broker at b2:1 does not answer",
        "1 partition without a leader",
        "2 partitions not fully in sync, not heard of for up to 1m",
    ]
    keyless = BrokerObservation(1, "b1:1", 1, "0.3.0", "serving", "connected", 1, {"partitions_without_key": 2.0}, {})
    (problem,) = problems(Look(ClusterObservation("c", (keyless,)), 0.0))
    assert problem.severity == "page"
    assert problem.text.startswith("broker 1 lacks the key of 2 partitions: its log names the key; start it with")


def test_keys_sort_filter_and_end() -> None:
    def after(keys: str) -> Wish:
        wish = Wish()
        for key in keys:
            wish = wish.key(key)
        return wish

    assert after("s").order == "records"
    assert after("ssss").order == "traffic"
    assert after("/qs\r") == Wish(only="qs")
    assert after("/abc\x7f") == Wish(only="ab", typing=True)
    assert after("/ab\x1b") == Wish()
    assert after("/a\x07b").only == "ab"
    assert len(after("/" + "x" * 500).only) == 100
    assert after("x?") == Wish()
    for keys in ("q", "/a\rq", "/a\x03"):
        assert after(keys).over


def test_without_a_terminal_it_writes_once_and_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("talk")
            words = ["--bootstrap", broker.address, "--every", "0.5"]
            result = await asyncio.to_thread(CliRunner().invoke, top.top, words, standalone_mode=False)
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        assert lines[0].split("\t") == ["broker", "address", "state", "version", "leads", "for clients", "disk free"]
        assert ["talk", "0", "0", "0 B"] in [line.split("\t") for line in lines]

    asyncio.run(scenario())


def test_on_a_terminal_it_draws_hears_keys_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("talk")
            await broker.create_topic("other")
            await asyncio.to_thread(publish, broker.address)
            await asyncio.to_thread(watch, broker.address)

    asyncio.run(scenario())


def publish(address: str) -> None:
    with Producer(address) as producer:
        for _ in range(3):
            producer.publish("talk", {"n": 1, "s": "x"}).result(30)


def watch(address: str) -> None:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (30, 100))
    before = termios.tcgetattr(slave)
    command = [sys.executable, "-m", "mq_cli.main", "top", "--every", "0.5", "--bootstrap", address]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.STDOUT, env=environment)
    try:
        read_until(master, "talk", "other", "(by traffic)")
        os.write(master, b"s")
        read_until(master, "(by records)")
        os.write(master, b"/tal\r")
        assert "other" not in read_until(master, "/tal  q ends").rpartition("topic")[2]
        os.write(master, b"q")
        read_until(master, "\x1b[?1049l")  # the screen that was there is back
        assert process.wait(DEADLINE_S) == 0
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        os.close(master)
        os.close(slave)


def read_until(master: int, *parts: str) -> str:
    """What was drawn by then."""
    drawn, deadline = "", time.monotonic() + DEADLINE_S
    while not all(part in drawn for part in parts):
        ready, _, _ = select.select([master], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{parts} did not come: {drawn!r}"
        drawn += os.read(master, 65_536).decode("utf-8", "replace")
    return drawn
