"""Which filters of members are known to be good."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.queues.checked_filters import KNOWN_MAX, CheckedFilters
from mq_broker.coordination.interface import TopicSpec
from mq_protocol.arrow import schema_to_bytes
from mq_protocol.errors import InvalidSetting
from tests.mq_broker.broker.queues.partitions import Around


class Text(str):
    """A string of which it can be seen whether somebody keeps it."""


def topic(*columns: str) -> Topic:
    schema = pa.schema([(column, pa.int64()) for column in columns])
    return Topic.of(TopicSpec("t", "0" * 32, ((1,),), schema_to_bytes(schema)))


def test_no_more_filters_are_remembered_than_may_be_and_those_that_are_used_stay() -> None:
    around: Any = Around()
    filters, of = CheckedFilters(around), topic("n")
    kept = []
    for number in range(2 * KNOWN_MAX):
        text = Text(f"n = {number}")
        kept.append(weakref.ref(text))
        asyncio.run(filters.check(of, text))
        asyncio.run(filters.check(of, "n = 0"))
    del text
    gc.collect()
    alive = [number for number, each in enumerate(kept) if each() is not None]
    assert alive == [0, *range(KNOWN_MAX + 1, 2 * KNOWN_MAX)]


def test_a_filter_is_checked_anew_once_the_topic_has_another_schema() -> None:
    now = topic("n")
    around: Any = Around(now)
    filters = CheckedFilters(around)
    asyncio.run(filters.check(topic("n", "m"), "m = 1"))
    with pytest.raises(InvalidSetting, match="'m'"):
        asyncio.run(filters.check(now, "m = 1"))
