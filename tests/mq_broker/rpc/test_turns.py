"""When long work on a request rests, alone and among others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from mq_broker.rpc import callers, turns
from mq_broker.rpc.turns import REST_S, RESTS_MAX, UNRESTED_TURNS, Spacing, Turns
from mq_broker.security.names import ANONYMOUS, Principal


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
    each = [REST_S * number if number <= longest else REST_S for number in range(1, 81)]
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
    monkeypatch.setattr(turns._of_clients, "_until", {})
    for account in ("User:a", "User:b"):
        rests = [turns._of_clients.slot_s(REST_S, account) for _ in range(1_000)]
        assert rests[0] == pytest.approx(REST_S), "nobody waits for another account"
        assert max(rests) == pytest.approx(turns.REST_S_MAX)


class Asked(Turns):
    """What is worked on for a connection."""

    def __init__(self, address: str, user: Principal = ANONYMOUS) -> None:
        super().__init__()
        self._asker = address, user

    async def others(self) -> None:
        address, user = self._asker
        callers._caller.set(address)
        callers._principal.set(user)
        await super().others()


def test_works_of_different_accounts_rest_side_by_side(time: Callable[..., Time]) -> None:
    clock = time(passes=False)
    works: list[Turns] = [Asked("ipv4:10.0.0.1:1"), Asked("ipv4:10.0.0.1:2"), Asked("ipv4:10.0.0.2:1")]
    for _ in range(UNRESTED_TURNS):
        clock.take(works)
    assert clock.take(works) == pytest.approx([REST_S, 2 * REST_S, REST_S]), "two connections are of one host"


def test_a_user_is_one_account_wherever_it_is(time: Callable[..., Time]) -> None:
    clock = time(passes=False)
    ada, eve = Principal("User", "ada"), Principal("User", "eve")
    works: list[Turns] = [
        Asked("ipv4:10.0.0.1:1", ada),
        Asked("ipv4:10.0.0.2:1", ada),
        Asked("ipv4:10.0.0.1:2", eve),
    ]
    for _ in range(UNRESTED_TURNS):
        clock.take(works)
    assert clock.take(works) == pytest.approx([REST_S, 2 * REST_S, REST_S])


def test_accounts_that_rest_no_more_are_forgotten() -> None:
    now = 0.0
    spacing = Spacing(1.0, lambda: now)
    for number in range(10 * turns.KNOWN_MIN):
        now += 0.1
        spacing.rest_s(1.0, f"User:{number}")
    assert len(spacing._until) <= turns.KNOWN_MIN
