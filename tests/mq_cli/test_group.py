"""Where `tritonmq group reset` moves a group, and how members are named."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mq_cli.group import _short_ids
from mq_cli.group_reset import Move, planned
from mq_client.group_descriptions import GroupCursor

LOGS = {0: (100, 200), 1: (0, 50), 2: (0, 0)}
PLACES = {0: 150, 1: 50}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("to", "by", "goals"),
    [
        ("earliest", None, {0: 100, 1: 0, 2: 0}),
        ("latest", None, {0: 200, 1: 50, 2: 0}),
        (120, None, {0: 120, 1: 50, 2: 0}),
        (0, None, {0: 100, 1: 0, 2: 0}),
        (NOON, None, {0: 130, 1: 50, 2: 0}),
        (None, -20, {0: 130, 1: 30}),
        (None, -1_000, {0: 100, 1: 0}),
        (None, 1_000, {0: 200, 1: 50}),
    ],
)
def test_a_group_is_moved_within_each_log(to: str | int | datetime | None, by: int | None, goals: dict[int, int]) -> None:
    moves = planned(LOGS, PLACES, to=to, by=by, times={0: 130, 1: 50, 2: 0})
    assert moves == [Move(number, PLACES.get(number), goal) for number, goal in goals.items()]


def test_each_partition_names_the_one_member_that_has_it() -> None:
    members = ("c" * 32, "a" * 32, "b" * 32)
    owners = [GroupCursor("t", number, 0, 0, 0, 0, 0, members, "consumer").member for number in range(4)]
    assert owners == ["a" * 32, "b" * 32, "c" * 32, "a" * 32]
    assert GroupCursor("t", 0, 0, 0, 0, 0, 0, (), "consumer").member == ""


def test_members_are_called_by_the_beginning_of_their_id_where_that_tells_them_apart() -> None:
    assert _short_ids({"a" * 32, "b" * 32}) == {"a" * 32: "a" * 8, "b" * 32: "b" * 8}
    assert _short_ids({"a" * 32, "a" * 31 + "b"}) == {"a" * 32: "a" * 32, "a" * 31 + "b": "a" * 31 + "b"}
