"""What the demo says when Spark fails in it."""

from __future__ import annotations

from benchmarks.demo.__main__ import FRAMES_SHOWN, LINES_SHOWN, last_words


def test_what_was_thrown_is_shown_however_long_its_stack() -> None:
    stack = [f"\tat frame{number}" for number in range(100)]
    shown = last_words(
        ["SparkException: not serializable", *stack, "Caused by: IllegalStateException: size", *stack, "\t... 64 more"]
    )
    first = stack[:FRAMES_SHOWN]
    assert shown == [
        "SparkException: not serializable",
        *first,
        "Caused by: IllegalStateException: size",
        *first,
        "\t... 64 more",
    ]
    assert len(last_words(["WARN"] * 1000)) == LINES_SHOWN
