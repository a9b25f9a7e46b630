"""Filters of members, asked of a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import FILTER_CHARACTERS_MAX, FILTER_DEPTH_MAX, FILTER_NUMBER_CHARACTERS_MAX
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.members import Member, queue, ranges


@virtual_time
async def test_a_member_is_lent_what_its_filter_keeps_of_what_the_group_keeps(tmp_path: Path) -> None:
    async with queue(tmp_path, filter="n >= 2") as broker:
        one, two = Member(broker, "a"), Member(broker, "b")
        assert ranges(await one.lease(filter="n < 4 OR n = 9")) == [2, 2, 5, 1]
        assert ranges(await Member(broker, "c").lease(wait_ms=0, filter="n IN (0, 1)")) == []
        assert ranges(await two.lease()) == [4, 5]
        for text in ("n >", "m = 1", "n = 'x'", "NOT " * (FILTER_DEPTH_MAX + 1) + "n = 1"):
            with pytest.raises(InvalidSetting, match="filter"):
                await two.lease(filter=text)
        for text in ("n IN (" + "1, " * FILTER_CHARACTERS_MAX + "1)", "n = 1" + "0" * FILTER_NUMBER_CHARACTERS_MAX):
            with pytest.raises(InvalidSetting, match="at most"):
                await two.lease(filter=text)
        waiting = asyncio.create_task(Member(broker, "c").lease(filter="n = 77"))
        await broker.produce("t", 76, 77)
        assert ranges(await waiting) == [11, 1]
