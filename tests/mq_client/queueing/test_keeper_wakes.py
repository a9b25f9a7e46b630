"""Who is woken by what a member says and hears: those who wait for records, and the thread that reads rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mq_client.cluster.deadline import Deadline
from mq_client.errors import UnknownTopic
from mq_client.queueing.keeper import Keeper
from mq_client.queueing.leases import HeldLease
from mq_client.queueing.settling import ACK
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart
from tests.mq_client.queueing.played_keeper import Played, lent, places

PART = (StagedPart("out", 0, (b"u" * 16,), 1, "id"),)
SAYINGS: dict[str, Callable[[Keeper, HeldLease], Any]] = {
    "one": lambda keeper, lease: keeper.settle_one(lease, 0, ACK),
    "several": lambda keeper, lease: keeper.settle(lease, places(0), ACK),
    "with outputs": lambda keeper, lease: keeper.ack_with_outputs(lease, places(0), PART),
}


def noted(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Who is woken from now on. Nobody waits."""
    woken: set[str] = set()
    for name in ("changed", "unread"):
        monkeypatch.setattr(getattr(keeper, name), "notify", lambda _n=1, name=name: woken.add(name))
    return woken


@pytest.mark.parametrize("said", SAYINGS)
def test_an_outcome_wakes_who_waits_for_the_next_record_of_the_key(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for order in (pb.ORDER_NONE, pb.ORDER_ALL):
        played = Played(monkeypatch)
        lease = played.lend(3, order=order)
        played.take()
        woken = noted(played.keeper, monkeypatch)
        SAYINGS[said](played.keeper, lease)
        assert woken == ({"changed"} if order == pb.ORDER_ALL else set()), "without an order nobody can take more"
        assert bool(played.keeper.holdings.shelf)


def fail(played: Played) -> None:
    with played.keeper.lock:
        played.keeper.fail(UnknownTopic("t"))


def end(played: Played) -> None:
    played.keeper.close_soon(Deadline(1_000))
    played.rest()
    assert played.ended


@pytest.mark.parametrize("act", [fail, lambda played: played.keeper.close_soon(Deadline(1_000)), end])
def test_an_error_and_the_end_wake_who_waits_for_records_and_who_reads_them(
    act: Callable[[Played], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(monkeypatch)
    woken = noted(played.keeper, monkeypatch)
    act(played)
    assert woken == {"changed", "unread"}


def test_an_answer_wakes_those_whom_it_gives_something(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    played.rest()
    woken = noted(played.keeper, monkeypatch)
    played.tell(ready=True)
    played.rest()
    assert woken == set()
    played.lend_unread(lent(5, 0, 2))
    assert woken == {"changed", "unread"}
    lease = played.read()
    woken.clear()
    played.take()
    future = played.keeper.settle_one(lease, 0, ACK)
    settle = played.one()
    assert woken == set()
    settle.done()
    played.rest()
    assert future.done()
    assert woken == {"changed"}
