"""A cluster of 10,000 topics, and one whose brokers tell little: what is shown of them is bounded, and is shown."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest

from mq_client import BrokerObservation, ClusterObservation, GroupObservation, PartitionObservation
from mq_console.serving import Console
from mq_console.tables import PAGE_ROWS
from mq_console.views import Settings
from mq_console.watching import Watcher

TOPICS = 10_000
PARTITION = PartitionObservation("t", 0, 1, True, 1, 1, (1, 2), (1, 2), (), 0, 5, 5, 0, 0, 0)
PAGE_BYTES_MAX = 200_000


def observed(detail: str) -> ClusterObservation:
    brokers = tuple(BrokerObservation(n, f"b{n}:1", 1, "v", "serving", "connected", 1, {}, {}) for n in (1, 2))
    if detail == "broker":
        return ClusterObservation("c", brokers)
    partitions = tuple(replace(PARTITION, topic=f"topic-{n:05}", log_end_offset=n) for n in range(TOPICS))
    groups = tuple(GroupObservation(f"g{n}", f"topic-{n:05}", "spark", 1, n, n, n, 1) for n in range(TOPICS))
    return ClusterObservation("c", brokers, (), partitions, groups, left_out={"topics": 7})


@pytest.fixture(scope="module")
def console() -> Console:
    """It has looked once, and never looks again."""
    made = Console("127.0.0.1:1", Settings())
    made.close()
    made.watcher = made.views.watcher = Watcher(observed)
    made.watcher.look()
    return made


def page(console: Console, path: str) -> str:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(console)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    console.watcher._first.set()
    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    assert len(answer.content) < PAGE_BYTES_MAX
    return answer.text


def test_lists_have_one_page_of_rows_and_say_how_many_there_are(console: Console) -> None:
    topics = page(console, "/topics?sort=-records&page=2")
    assert topics.count("<tr>") == PAGE_ROWS + 1
    assert "topic-09899" in topics
    assert "topic-09900" not in topics
    assert "page 2 of 100" in topics
    assert "10,000 topics" in topics
    assert "Brokers know 7 more topics" in topics
    assert page(console, "/topics?q=topic-0123").count("<tr>") == 11
    assert page(console, "/groups").count("<tr>") == PAGE_ROWS + 1


def test_brokers_that_do_not_tell_of_their_disk_are_shown_without_it(console: Console) -> None:
    assert 'id="broker-2"' in page(console, "/")
