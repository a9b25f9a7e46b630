"""Kinds of tokens are asked in turn, and other packages may bring further ones."""

from __future__ import annotations

import asyncio
import importlib
import time
from pathlib import Path

import pytest

from mq_broker.rpc.wire import entering
from mq_broker.security.authenticating import added, authenticated
from mq_broker.security.names import Principal
from mq_broker.security.verified import Verified
from mq_client import Admin
from mq_client.errors import NotAuthenticated
from mq_protocol.errors import InvalidSetting
from tests.coroutines import real_time
from tests.mq_broker.broker.by_token import Place, beside


class Badges:
    """What a package could bring."""

    async def authenticate(self, token: str) -> Verified | None:
        match token.split("-"):
            case ["badge", "slow"]:
                await asyncio.sleep(3_600)
            case ["badge", "broken"]:
                raise RuntimeError("badge reader")
            case ["badge", "bad"]:
                raise NotAuthenticated("no such badge")
            case ["badge", kind, name]:
                return Verified(Principal(kind, name), time.time() + 60)  # type: ignore[arg-type]
        return None


class Nothing:
    pass


def broken() -> None:
    raise RuntimeError("no reader")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package, as pip leaves it."""
    made = tmp_path / "badges-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: badges\nVersion: 1.0\n")
    here = __name__
    (made / "entry_points.txt").write_text(
        f"[tritonmq.authenticators]\nbadges = {here}:Badges\nnothing = {here}:Nothing\nbroken = {here}:broken\n"
        f"gone = {here}:Gone\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


@real_time
async def test_the_first_that_knows_the_kind_decides() -> None:
    found = await authenticated([Badges()], "badge-User-ann")
    assert found.principal == Principal("User", "ann")
    for token in ("badge-bad", "other", "badge-Broker-1", "badge-User-ANONYMOUS"):
        with pytest.raises(NotAuthenticated) as refused:
            await authenticated([Badges()], token)
        assert token not in str(refused.value)


def test_one_that_is_not_there_or_is_none_is_refused_at_the_start() -> None:
    assert type(added("badges")).__name__ == "Badges"
    for name, told in (
        ("badge", "did you mean 'badges'"), ("nothing", "authenticates nobody"), ("broken", "no reader"),
        ("gone", "cannot be loaded"),
    ):  # fmt: skip
        with pytest.raises(InvalidSetting, match=told):
            added(name)


def test_a_broker_takes_what_a_package_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entering, "VERIFY_S", 2.0)

    def job(place: Place) -> None:
        def topics(token: str) -> list[str]:
            with Admin(place.address, timeout_ms=5_000, security=place.security(token)) as admin:
                return list(admin.list_topics())

        assert topics("badge-User-ann") == []
        for token in ("badge-bad", "badge-broken", "badge-slow", "badge-Broker-1", "other"):
            with pytest.raises(NotAuthenticated, match=r"^not authenticated: the token is wrong"):
                topics(token)

    beside(tmp_path, job, authenticators=("badges",))
