"""Cursor moves that are refused for now, and listings of groups in several answers, with stand-ins for partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.groups import cursors as groups
from mq_broker.broker.groups.cursors import CONSUMER, CursorMoves, Groups
from mq_broker.core.entries import MoveCursor
from mq_broker.core.messages import Done, Refused, Result
from mq_protocol.errors import NotEnoughReplicas
from tests.mq_broker.broker.groups.partitions import ANYBODY


class Led:
    """A partition led here, that notes what is proposed and answers when it is told to."""

    def __init__(self, name: str = "t", number: int = 0, *cursors: str) -> None:
        self.name = f"{name}-{number}"
        self.number = number
        self.topic = SimpleNamespace(spec=SimpleNamespace(name=name, queues={}))
        self.leading, self.closed = True, False
        self.replica = SimpleNamespace(leader_epoch=1, machine=SimpleNamespace(cursors=dict.fromkeys(cursors)))
        self.proposed: list[int] = []
        self.reply: Callable[[Result], None] = lambda _: None

    def propose(
        self, operation: MoveCursor, on_reply: Callable[[Result], None], _deadline: float, *, for_anybody: bool
    ) -> None:
        assert for_anybody == ANYBODY.for_anybody
        self.proposed.append(operation.offset)
        self.reply = on_reply


REFUSED = Refused(NotEnoughReplicas("1 live in-sync replica of 2"))


async def rounds() -> None:
    """All that is due by now has been done."""
    for _ in range(5):
        await asyncio.sleep(0.001)


def test_a_move_that_was_refused_is_tried_again_with_the_newest_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOVE_AGAIN_S", 0.0)

    async def scenario() -> None:
        led: Any = Led()
        moves = CursorMoves()
        moves.move(led, "g", 5, CONSUMER, ANYBODY)
        led.reply(REFUSED)
        moves.move(led, "g", 9, CONSUMER, ANYBODY)
        assert moves.cursor(led, "g") == 9
        await rounds()
        assert led.proposed == [5, 9]
        led.reply(Done(3))
        assert led.proposed == [5, 9]
        moves.move(led, "g", 10, CONSUMER, ANYBODY)
        assert led.proposed == [5, 9, 10], "nothing is left in flight"

    asyncio.run(scenario())


def test_a_move_that_was_refused_in_a_former_leadership_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOVE_AGAIN_S", 0.0)

    async def scenario() -> None:
        led: Any = Led()
        moves = CursorMoves()
        moves.move(led, "g", 5, CONSUMER, ANYBODY)
        led.reply(REFUSED)
        led.replica.leader_epoch = 2
        await rounds()
        assert led.proposed == [5]
        assert moves.cursor(led, "g") == -1

    asyncio.run(scenario())


def test_a_listing_that_goes_on_tells_each_cursor_once() -> None:
    partitions: list[Any] = [Led("a", 0, "g", "h"), Led("a", 1, "g"), Led("b", 0, "f", "g", "h")]
    after, told = ("", 0, ""), []
    while (place := next(Groups._places(partitions, "", after), None)) is not None:
        partition, group = place
        after = partition.topic.spec.name, partition.number, group
        told.append(after)
        assert len(told) <= 6
    assert told == [("a", 0, "g"), ("a", 0, "h"), ("a", 1, "g"), ("b", 0, "f"), ("b", 0, "g"), ("b", 0, "h")]
