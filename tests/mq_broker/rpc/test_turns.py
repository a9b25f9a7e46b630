"""When long work on a request rests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from mq_broker.rpc import turns
from mq_broker.rpc.turns import REST_S, RESTS_MAX, UNRESTED_TURNS, Turns


def test_what_is_short_does_not_rest_and_what_is_long_rests_so_often_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    rested: list[float] = []

    async def sleep(seconds: float) -> None:
        rested.append(seconds)

    async def work() -> None:
        of_one = Turns()
        for _ in range(UNRESTED_TURNS + RESTS_MAX + 10):
            await of_one.others()

    monkeypatch.setattr(turns, "asyncio", SimpleNamespace(sleep=sleep))
    asyncio.run(work())
    assert rested == [0] * UNRESTED_TURNS + [REST_S] * RESTS_MAX + [0] * 10
