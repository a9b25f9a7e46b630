"""Cursor moves under way: one at a time, then the newest; what is refused for now is tried again, and nothing else
is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq_broker.broker.groups.cursors import CONSUMER, MOVE_AGAIN_S, CursorMoves, Mover
from mq_broker.core.machine.state import EPHEMERAL, Cursor
from mq_broker.core.messages import Done, Refused
from mq_protocol.errors import InvalidRequest, NotEnoughReplicas
from mq_protocol.limits import REQUEST_TIMEOUT_MS
from tests.coroutines import virtual_time
from tests.mq_broker.broker.groups.partitions import ANYBODY, Led

FOR_NOW = Refused(NotEnoughReplicas("1 live in-sync replica of 2"))
FOR_GOOD = Refused(InvalidRequest("the log ends before that"))


async def later() -> None:
    """What was refused for now has been tried again."""
    await asyncio.sleep(1.5 * MOVE_AGAIN_S)


@pytest.fixture
def led() -> Led:
    return Led()


@pytest.fixture
def moves() -> CursorMoves:
    return CursorMoves()


@virtual_time
async def test_a_move_goes_forward_only_and_may_take_as_long_as_any_request(led: Any, moves: CursorMoves) -> None:
    now = asyncio.get_running_loop().time()
    moves.move(led, "g", 5, EPHEMERAL, ANYBODY)
    [move] = led.proposed
    assert (move.group, move.offset, move.kind, move.forward) == ("g", 5, EPHEMERAL, True)
    assert led.deadlines[0] - now == pytest.approx(REQUEST_TIMEOUT_MS / 1000, abs=5)


@virtual_time
async def test_one_move_of_a_group_is_under_way_at_a_time_and_then_the_newest(led: Any, moves: CursorMoves) -> None:
    for offset in (5, 6, 7):
        moves.move(led, "g", offset, CONSUMER, ANYBODY)
    moves.move(led, "h", 1, CONSUMER, ANYBODY)
    assert led.offsets == [5, 1]
    assert (moves.cursor(led, "g"), moves.cursor(led, "h")) == (7, 1)
    led.replies[0](Done(0))
    assert led.offsets == [5, 1, 7]
    assert moves.cursor(led, "g") == 7
    led.replies[2](Done(0))
    assert led.offsets == [5, 1, 7]


@virtual_time
async def test_what_is_where_it_should_be_is_not_moved_again(led: Any, moves: CursorMoves) -> None:
    moves.move(led, "g", 5, CONSUMER, ANYBODY)
    moves.move(led, "g", 5, CONSUMER, ANYBODY)
    led.replies[0](Done(0))
    assert led.offsets == [5]


@virtual_time
async def test_where_a_group_is_told_from_what_is_under_way_and_then_from_the_journal(
    led: Any, moves: CursorMoves
) -> None:
    assert (moves.cursor(led, "g"), moves.kind(led, "g")) == (-1, None)
    moves.move(led, "g", 5, EPHEMERAL, ANYBODY)
    assert (moves.cursor(led, "g"), moves.kind(led, "g")) == (5, EPHEMERAL)
    led.replies[0](Done(0))
    led.cursors["g"] = Cursor(4, CONSUMER, 0)
    assert (moves.cursor(led, "g"), moves.kind(led, "g")) == (4, CONSUMER)


@virtual_time
async def test_what_is_refused_for_good_is_left(led: Any, moves: CursorMoves) -> None:
    moves.move(led, "g", 5, CONSUMER, ANYBODY)
    moves.move(led, "g", 6, CONSUMER, ANYBODY)
    led.replies[0](FOR_GOOD)
    await later()
    assert led.offsets == [5]
    assert moves.cursor(led, "g") == -1
    moves.move(led, "g", 2, CONSUMER, ANYBODY)
    assert led.offsets == [5, 2], "and holds up nothing that comes later"


@pytest.mark.parametrize(("end", "over"), [("leading", False), ("closed", True)])
@virtual_time
async def test_what_is_refused_while_the_leadership_ends_is_left(
    led: Any, moves: CursorMoves, end: str, over: bool
) -> None:
    moves.move(led, "g", 5, CONSUMER, ANYBODY)
    setattr(led, end, over)
    led.replies[0](FOR_NOW)
    await later()
    assert led.offsets == [5]
    assert moves.cursor(led, "g") == -1


@virtual_time
async def test_an_answer_to_a_former_leadership_changes_nothing_of_this_one(led: Any, moves: CursorMoves) -> None:
    moves.move(led, "g", 5, CONSUMER, ANYBODY)
    led.replica.leader_epoch = 2
    moves.move(led, "g", 3, CONSUMER, ANYBODY)
    led.replies[0](Done(0))
    assert moves.cursor(led, "g") == 3, "still under way"
    led.replies[0](FOR_NOW)
    await later()
    assert led.offsets == [5, 3]


@virtual_time
async def test_what_was_tried_again_is_not_tried_again_for_the_place_it_was_moved_to(
    led: Any, moves: CursorMoves
) -> None:
    moves.move(led, "g", 5, CONSUMER, ANYBODY)
    led.replies[0](FOR_NOW)
    await later()
    led.replies[1](FOR_NOW)
    moves.move(led, "g", 8, CONSUMER, ANYBODY)
    await later()
    led.replies[2](Done(0))
    assert led.offsets == [5, 5, 8]
    moves.move(led, "g", 9, CONSUMER, ANYBODY)
    assert led.offsets == [5, 5, 8, 9]


@virtual_time
async def test_a_group_that_is_being_deleted_is_moved_no_more(led: Any, moves: CursorMoves) -> None:
    moves.move(led, "g", 5, CONSUMER, ANYBODY)
    moves.move(led, "g", 6, CONSUMER, ANYBODY)
    moves.forget(led, "g")
    led.replies[0](Done(0))
    moves.move(led, "h", 5, CONSUMER, ANYBODY)
    led.replies[1](FOR_NOW)
    moves.forget(led, "h")
    await later()
    assert led.offsets == [5, 5]
    moves.forget(led, "nobody")


@virtual_time
async def test_each_move_is_in_the_name_of_who_asked_for_that_place(led: Any, moves: CursorMoves) -> None:
    ann, root = Mover("User:ann", for_anybody=False), Mover("User:root", for_anybody=True)
    moves.move(led, "g", 5, CONSUMER, ann)
    moves.move(led, "g", 6, CONSUMER, ann)
    moves.move(led, "g", 7, CONSUMER, root)
    led.replies[0](FOR_NOW)
    await later()
    led.replies[1](Done(0))
    moves.move(led, "g", 8, CONSUMER, ann)
    moves.move(led, "g", 9, CONSUMER, root)
    led.replies[2](Done(0))
    asked = zip(led.offsets, (each.owner for each in led.proposed), led.for_anybody, strict=True)
    assert list(asked) == [
        (5, "User:ann", False),
        (7, "User:root", True),
        (8, "User:ann", False),
        (9, "User:root", True),
    ]
