"""Which filters of members are known to be good."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.queues import checked_filters
from mq_broker.broker.queues.checked_filters import CheckedFilters
from mq_protocol.errors import InvalidSetting


def topic(*columns: str) -> Any:
    return SimpleNamespace(
        spec=SimpleNamespace(topic_id="t1"), schema=pa.schema([(column, pa.int64()) for column in columns])
    )


def test_no_more_filters_are_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_filters, "KNOWN_MAX", 5)
    topics: Any = SimpleNamespace()
    filters, of = CheckedFilters(topics), topic("n")
    for number in range(20):
        asyncio.run(filters.check(of, f"n = {number}"))
        asyncio.run(filters.check(of, "n = 0"))
    assert sorted(text for _, text in filters._known) == ["n = 0", "n = 16", "n = 17", "n = 18", "n = 19"]


def test_a_filter_is_checked_anew_once_the_topic_has_another_schema() -> None:
    async def renewed(known: Any) -> Any:
        return known

    topics: Any = SimpleNamespace(renewed=renewed)
    filters = CheckedFilters(topics)
    asyncio.run(filters.check(topic("n", "m"), "m = 1"))
    with pytest.raises(InvalidSetting, match="'m'"):
        asyncio.run(filters.check(topic("n"), "m = 1"))
