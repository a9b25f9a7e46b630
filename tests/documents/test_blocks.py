"""How documents are read."""

from __future__ import annotations

import pytest

from tests.documents.blocks import Block, agrees, blocks


def test_code_is_found_in_order_with_the_output_that_follows_it() -> None:
    text = "a\n```shell\necho 1\n```\nthen\n```text\n1\n```\n```python elsewhere\nx\n```\n```sql\nselect\n```\n"
    assert blocks(text) == [Block("shell", "", "echo 1\n", 2, "1\n"), Block("python", "elsewhere", "x\n", 9)]


def test_an_output_that_follows_no_code_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1: this output follows no code"):
        blocks("```text\n1\n```\n")


def test_a_way_to_run_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="'backgroud' is not a way"):
        blocks("```shell backgroud\nx\n```\n")


@pytest.mark.parametrize(
    ("shown", "printed", "agree"),
    [
        ("one\ntwo\n", "\none  \ntwo\n\n", True),
        ("one\ntwo\n", "one\n", False),
        ("one\n", "one\ntwo\n", False),
        ("at … o'clock\n", "at 12 o'clock\n", True),
        ("at … o'clock\n", "at 12\no'clock\n", False),
        ("a\n…\nz\n", "a\nb\nc\nz\n", True),
        ("a\n…\nz\n", "a\nb\nc\n", False),
        ("…\n", "", True),
        ("a.c\n", "abc\n", False),
        ("name   lag\n", "name\tlag\n", True),
    ],
)
def test_an_output_agrees_line_by_line(shown: str, printed: str, agree: bool) -> None:
    assert agrees(shown, printed) is agree
