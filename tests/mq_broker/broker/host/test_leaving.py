"""At a clean stop every partition is closed, and checkpoints are written as long as there is time for them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.host import leaving
from mq_broker.broker.host.leaving import AT_ONCE, BEGIN_S, leave
from mq_protocol.errors import OutcomeUnknown, TritonMQError
from tests.logs import said_here

OVER = OutcomeUnknown("over")


class World:
    """Partitions by name, and the clock: each checkpoint takes `each_takes_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, each_takes_s: float = 0.0) -> None:
        self.now = 500.0
        self.each_takes_s = each_takes_s
        self.closed: list[str] = []
        self.kept: list[str] = []
        self.writing = self.most = 0
        monkeypatch.setattr(leaving, "monotonic", lambda: self.now)
        monkeypatch.setattr(leaving, "derived_now", lambda partition: partition.derived)

    def partition(self, name: str, gain: int | None, *, applied: bool = True) -> Any:
        """`gain`: None in memory."""
        made = SimpleNamespace(name=name, derived=name if applied else None)

        async def keep(derived: str) -> bool:
            assert name in self.closed, "its last entries are synced"
            self.writing += 1
            self.most = max(self.most, self.writing)
            await asyncio.sleep(0)
            self.writing -= 1
            self.now += self.each_takes_s
            self.kept.append(derived)
            return True

        async def close(error: TritonMQError) -> None:
            assert error is OVER
            self.closed.append(name)

        made.close = close
        made.journal = SimpleNamespace(keeping=None if gain is None else SimpleNamespace(gain=gain, keep=keep))
        return made

    def leave(self, *partitions: Any, keeps: bool = True) -> None:
        asyncio.run(leave(partitions, OVER, keeps=keeps))
        assert sorted(self.closed) == sorted(partition.name for partition in partitions)


def test_what_spares_the_next_start_most_is_written_first_and_what_spares_nothing_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaving, "AT_ONCE", 1)
    world = World(monkeypatch)
    given = {"some": 5, "nothing": 0, "most": 9, "memory": None, "more": 7}
    world.leave(
        *(world.partition(name, gain) for name, gain in given.items()), world.partition("new", 6, applied=False)
    )
    assert world.kept == ["most", "more", "some"]


def test_after_some_time_no_checkpoint_is_begun_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leaving, "AT_ONCE", 1)
    world = World(monkeypatch, each_takes_s=BEGIN_S / 2)
    world.leave(*(world.partition(f"p{gain}", gain) for gain in range(5)))
    assert world.kept == ["p4", "p3"]
    assert [line.partition(" for want")[0] for line in caplog.messages] == [
        "2 partitions were closed without a checkpoint,"
    ]


def test_only_so_many_are_built_in_memory(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    world = World(monkeypatch)
    world.leave(*(world.partition(f"p{gain}", gain) for gain in range(1, 20)))
    assert (world.most, len(world.kept)) == (AT_ONCE, 19)
    assert said_here(caplog) == []


def test_what_may_be_wrong_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.leave(world.partition("p", 5), keeps=False)
    assert world.kept == []
