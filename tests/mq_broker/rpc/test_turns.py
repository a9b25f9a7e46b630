"""When long work on a request rests, alone and among others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from mq_broker.rpc import turns
from mq_broker.rpc.turns import REST_S, RESTS_MAX, UNRESTED_TURNS, Spacing, Turns


class Time:
    """What rested, and a clock that the rests alone move, if they do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, passes: bool) -> None:
        self.now = 100.0
        self.rested: list[float] = []
        self._passes = passes
        monkeypatch.setattr(turns, "asyncio", SimpleNamespace(sleep=self._sleep))
        monkeypatch.setattr(turns, "_of_clients", Spacing(turns.REST_S_MAX, lambda: self.now))

    async def _sleep(self, seconds: float) -> None:
        self.rested.append(seconds)
        self.now += seconds if self._passes else 0.0

    def take(self, works: list[Turns]) -> list[float]:
        """One turn of each, and how long each rested."""
        self.rested.clear()
        for work in works:
            asyncio.run(work.others())
        return list(self.rested)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Time]:
    return lambda **options: Time(monkeypatch, **options)


def test_what_is_short_does_not_rest_and_what_is_long_rests_so_often_at_most(time: Callable[..., Time]) -> None:
    clock = time(passes=True)
    rests = clock.take([Turns()] * (UNRESTED_TURNS + RESTS_MAX + 10))
    assert rests == pytest.approx([0] * UNRESTED_TURNS + [REST_S] * RESTS_MAX + [0] * 10)


def test_long_works_rest_one_after_the_other_and_so_long_at_most(time: Callable[..., Time]) -> None:
    clock = time(passes=False)
    works = [Turns() for _ in range(80)]
    for _ in range(UNRESTED_TURNS):
        assert clock.take(works) == [0] * 80
    longest = round(turns.REST_S_MAX / REST_S)
    assert longest < 80
    each = [REST_S * min(number, longest) for number in range(1, 81)]
    assert clock.take(works) == pytest.approx(each)
    clock.now += turns.REST_S_MAX + 1
    assert clock.take(works[:2]) == pytest.approx([REST_S, 2 * REST_S]), "nothing is owed once they have rested"


def test_one_that_is_alone_waits_for_no_other(time: Callable[..., Time]) -> None:
    clock = time(passes=False)
    works = [Turns(), Turns(alone=True), Turns(), Turns(alone=True)]
    for _ in range(UNRESTED_TURNS):
        clock.take(works)
    assert clock.take(works) == pytest.approx([REST_S, REST_S, 2 * REST_S, REST_S])


def test_nobody_owes_more_than_the_longest_rest_however_many_have_rested(time: Callable[..., Time]) -> None:
    clock = time(passes=False)
    works = [Turns() for _ in range(80)]
    for _ in range(UNRESTED_TURNS + 1):
        clock.take(works)
    clock.now += turns.REST_S_MAX
    assert clock.take(works[:2]) == pytest.approx([REST_S, 2 * REST_S])


def test_works_of_clients_rest_up_to_the_longest_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns._of_clients, "_clock", lambda: 100.0)
    monkeypatch.setattr(turns._of_clients, "_until", 0.0)
    rests = [turns._of_clients.rest_s(REST_S) for _ in range(1_000)]
    assert max(rests) == pytest.approx(turns.REST_S_MAX)
