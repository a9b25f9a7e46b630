"""Where `tritonmq group reset` moves a group, and how members are named."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mq_cli.managing.group import Move, planned
from mq_client.shown.descriptions import GroupCursor
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import BATCH_BYTES_MAX
from tests.mq_broker.broker.cluster import standalone
from tests.mq_cli.processes import Outcome, tritonmq
from tests.mq_console.served import served

LOGS = {0: (100, 200), 1: (0, 50), 2: (0, 0)}
PLACES = {0: 150, 1: 50}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("to", "by", "goals"),
    [
        ("earliest", None, {0: 100, 1: 0, 2: 0}),
        ("latest", None, {0: 200, 1: 50, 2: 0}),
        (120, None, {0: 120, 1: 50, 2: 0}),
        (0, None, {0: 100, 1: 0, 2: 0}),
        (NOON, None, {0: 130, 1: 50, 2: 0}),
        (None, -20, {0: 130, 1: 30}),
        (None, -1_000, {0: 100, 1: 0}),
        (None, 1_000, {0: 200, 1: 50}),
    ],
)
def test_a_group_is_moved_within_each_log(
    to: str | int | datetime | None, by: int | None, goals: dict[int, int]
) -> None:
    moves = planned(LOGS, PLACES, to=to, by=by, times={0: 130, 1: 50, 2: 0})
    assert moves == [Move(number, PLACES.get(number), goal) for number, goal in goals.items()]


def test_each_partition_names_the_one_member_that_has_it() -> None:
    members = ("c" * 32, "a" * 32, "b" * 32)
    owners = [GroupCursor("t", number, 0, 0, 0, 0, 0, members, "consumer").member for number in range(4)]
    assert owners == ["a" * 32, "b" * 32, "c" * 32, "a" * 32]
    assert GroupCursor("t", 0, 0, 0, 0, 0, 0, (), "consumer").member == ""


QUERY = "0b6f3c0a-5b1e-4c55-9d1d-1f6f4b1b2c3d"


def told(bootstrap: str) -> dict[str, Outcome]:
    """What commands say of the group `orders`."""
    asked = {"describe": ["describe", "orders"], "by its name": ["describe", QUERY], "peek": ["peek", "orders", "t"]}
    return {what: tritonmq("group", *words, "--bootstrap", bootstrap) for what, words in asked.items()}


def pages(bootstrap: str) -> dict[str, str]:
    with served(bootstrap) as client:
        return {path: client.get(path).text for path in ("/", "/groups", f"/groups/{QUERY}", "/topics/t", "/brokers/1")}


def test_a_group_is_found_by_the_label_that_is_shown_and_shown_by_it_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            place = pb.CursorPosition(topic="t", partition=0, offset=0)
            request = pb.MoveCursorsRequest(group=QUERY, positions=[place], kind="spark", label="orders")
            await broker.ask("MoveCursors", request)
            said = await asyncio.to_thread(told, broker.address)
            assert said["describe"].returncode == 0, said["describe"].stderr
            assert said["describe"] == said["by its name"]
            assert f"group {QUERY}, label orders".encode() in said["describe"].stderr
            assert f"it is the label of {QUERY}: give the name".encode() in said["peek"].stderr
            shown = await asyncio.to_thread(pages, broker.address)
            for path in ("/", "/groups"):
                assert f'<a href="/groups/{QUERY}">orders</a> <span class="quiet">{QUERY}</span>' in shown[path]
            assert "<h1>orders</h1>" in shown[f"/groups/{QUERY}"]
            assert ">1 group<" in shown["/groups"]
            assert f" MiB ({BATCH_BYTES_MAX:,})" in shown["/topics/t"]
            assert '<th scope="row">Starts</th><td>1</td>' in shown["/brokers/1"]

    asyncio.run(scenario())
