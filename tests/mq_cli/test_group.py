"""Where `tritonmq group reset` moves a group, and how members are named."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mq_cli import group_reset
from mq_cli.group import _short_ids
from mq_cli.group_reset import Move, planned
from mq_client import GroupInUse
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
def test_a_group_is_moved_within_each_log(
    to: str | int | datetime | None, by: int | None, goals: dict[int, int]
) -> None:
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


class Known:
    """Stands for an Admin of one group, which has a place in two topics and a member that reads one of them."""

    def __init__(self, member_of: str = "") -> None:
        self.moved: list[object] = []
        self.asked_us: list[int] = []
        self._member_of = member_of

    def __enter__(self) -> Known:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe_group(self, _name: str) -> Any:
        def cursor(topic: str, offset: int) -> GroupCursor:
            members = ("m" * 32,) if topic == self._member_of else ()
            return GroupCursor(topic, 0, offset, 0, 0, 0, 0, members, "consumer")

        return SimpleNamespace(cursors=[cursor("t", 5), cursor("other", 90)])

    def offsets(self, _topic: str) -> dict[int, tuple[int, int]]:
        return {0: (0, 100)}

    def offsets_at(self, _topic: str, time_us: int) -> dict[int, int]:
        self.asked_us.append(time_us)
        return {0: 7}

    def move_group(self, name: str, places: object, *, unless_read: bool) -> None:
        self.moved.append((name, places, "unless it is read" if unless_read else "in any case"))


def reset(monkeypatch: pytest.MonkeyPatch, known: Known, *options: str) -> Result:
    monkeypatch.setattr(group_reset, "open_admin", lambda *_: known)
    return CliRunner().invoke(group_reset.reset, ["g", "t", *options])


def test_a_group_goes_on_by_its_place_in_that_topic_and_in_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Known()
    assert reset(monkeypatch, known, "--by", "-2").exit_code == 0
    assert known.moved == [("g", {"t": {0: 3}}, "unless it is read")]


def test_a_time_is_asked_for_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Known()
    assert reset(monkeypatch, known, "--to", "2026-01-31T12:00:00Z").exit_code == 0
    assert known.asked_us == [1_769_860_800_000_000]
    assert known.moved == [("g", {"t": {0: 7}}, "unless it is read")]


def test_members_of_that_topic_keep_a_group_where_it_is_but_not_from_being_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Known(member_of="t")
    assert reset(monkeypatch, known, "--to", "earliest", "--plan").exit_code == 0
    refused = reset(monkeypatch, known, "--to", "earliest")
    assert isinstance(refused.exception, GroupInUse)
    assert known.moved == []
    assert reset(monkeypatch, known, "--to", "earliest", "--force").exit_code == 0
    assert known.moved == [("g", {"t": {0: 0}}, "in any case")]
    elsewhere = Known(member_of="other")
    assert reset(monkeypatch, elsewhere, "--to", "earliest").exit_code == 0
    assert elsewhere.moved == [("g", {"t": {0: 0}}, "unless it is read")]
