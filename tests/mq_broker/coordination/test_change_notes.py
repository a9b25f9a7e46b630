"""What the counter of topic changes is believed to say."""

from __future__ import annotations

import pytest

from mq_broker.coordination.topics import LINES_MAX, changed_since, with_changes


def noted(*names: str, note: bytes = b"", version: int = 0) -> bytes:
    """Changes of these topics, one after another."""
    for name in names:
        note, version = with_changes(note, version, [name]), version + 1
    return note


def test_a_reader_learns_which_topics_changed_since_it_read() -> None:
    note = noted("a", "b", "a", "c")
    assert changed_since(note, 4, 4) == []
    assert changed_since(note, 4, 3) == ["c"]
    assert changed_since(note, 4, 1) == ["a", "b", "c"]
    assert changed_since(note, 4, 0) == ["a", "b", "c"]


def test_topics_that_are_changed_together_are_one_change() -> None:
    note = noted("e", note=with_changes(noted("a"), 1, ["b", "c", "d"]), version=2)
    assert changed_since(note, 3, 1) == ["b", "c", "d", "e"]
    assert changed_since(note, 3, 2) == ["e"]


def test_a_change_of_many_topics_is_noted_whole_or_not_at_all() -> None:
    together = with_changes(noted("a"), 1, [f"t{n}" for n in range(LINES_MAX)])
    assert changed_since(together, 2, 0) is None
    assert changed_since(together, 2, 1) is not None
    after = noted("b", note=together, version=2)
    assert changed_since(after, 3, 1) is None
    assert changed_since(after, 3, 2) == ["b"]


def test_a_note_that_does_not_reach_back_far_enough_is_not_believed() -> None:
    note = noted(*(f"t{n}" for n in range(LINES_MAX + 5)))
    assert len(note.splitlines()) == LINES_MAX
    assert changed_since(note, LINES_MAX + 5, 4) is None
    assert changed_since(note, LINES_MAX + 5, 5) is not None


def test_two_writers_that_meet_cost_a_full_reading_and_no_change() -> None:
    seen = noted("a")
    first, second = with_changes(seen, 1, ["b"]), with_changes(seen, 1, ["c"])
    assert first != second
    assert changed_since(second, 3, 1) is None, "b is missing in it"
    after = with_changes(second, 3, ["d"])
    assert changed_since(after, 4, 1) is None
    assert changed_since(after, 4, 3) == ["d"]


def test_a_counter_that_went_back_or_says_nothing_is_not_believed() -> None:
    assert changed_since(noted("a"), 1, 2) is None
    assert changed_since(b"", 7, 6) is None
    assert changed_since(b"rubbish", 7, 6) is None


@pytest.mark.parametrize(
    "note",
    [
        b"3 ../../x",
        b"3 ..",
        b"3 \xff",
        b"x y\n3 a",
        b"3 a/b",
        b"2 \n3 a",
        b"9" * 5_000 + b" a",
        b"2 a\nb\n3 c",
        b"2 a\r3 b\n3 c",
    ],
)
def test_a_note_that_names_no_topic_is_not_believed_and_not_gone_on_with(note: bytes) -> None:
    assert changed_since(note, 3, 2) is None
    assert with_changes(note, 3, ["t"]) == b"4 t"
