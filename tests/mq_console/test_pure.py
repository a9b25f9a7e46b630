"""What pages are made of: rings of figures, lines, lists, values as text."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from datetime import date
from decimal import Decimal

import pytest

from mq_console.history import History
from mq_console.rendering import (
    as_json,
    chart,
    environment,
    indented,
    metric_text,
    moment_text,
    rate_text,
    sparkline,
    top_of,
)
from mq_console.tables import Column, Wish, listed
from mq_console.tail import CELL_CHARACTERS_MAX, text_of

# ------------------------------------------------------------------ history


def test_a_series_begins_above_0_and_has_gaps_where_nothing_was_known() -> None:
    history = History(points=5, step_s=5)
    history.note(0, {("a",): 0.0})
    assert history.of("a") == []
    history.note(5, {("a",): 2.0})
    history.note(10, {})
    history.note(15, {("a",): 0.0})
    assert history.of("a") == [None, 2.0, None, 0.0]
    assert history.of("a", points=2) == [None, 0.0]


def test_a_note_holds_for_the_time_since_the_one_before_it_and_old_values_go() -> None:
    history = History(points=4, step_s=5)
    history.note(0, {("a",): 1.0})
    history.note(15, {("a",): 7.0})
    assert history.of("a") == [1.0, 7.0, 7.0, 7.0]
    history.note(1_000_000, {("a",): 3.0})
    assert history.of("a") == [3.0] * 4
    history.note(1_000_001, {("a",): 4.0})
    assert history.of("a") == [3.0, 3.0, 3.0, 4.0]


def test_there_are_never_more_series_than_allowed_and_idle_ones_give_way() -> None:
    history = History(points=3, step_s=1, series_max=3)
    history.note(0, {(name,): 1.0 for name in "abc"})
    history.note(1, {("a",): 1.0, ("b",): 0.0, ("c",): 1.0, ("d",): 1.0, ("e",): 1.0})
    assert [bool(history.of(name)) for name in "abcde"] == [True, False, True, True, False]


# ------------------------------------------------------------------ lines


@pytest.mark.parametrize(
    ("values", "top"), [([], 1), ([None, 0], 1), ([3], 5), ([1, 20], 20), ([0.3], 0.5), ([5.1], 10), ([99], 100)]
)
def test_a_scale_ends_at_a_round_number_that_is_not_below_the_line(values: list[float | None], top: float) -> None:
    assert top_of(values) == pytest.approx(top)


def test_lines_are_xml_with_a_gap_where_nothing_is_known() -> None:
    path = ET.fromstring(sparkline([1.0, 2.0, None, 4.0])).find("path")
    assert path is not None
    assert path.attrib["d"].count("M") == 2
    assert ET.fromstring(sparkline([])).find("path") is not None
    figure = ET.fromstring(chart([None, 1.0, 3.0], lambda value: f"{value:g} <&>", 5, 'in "all"'))
    assert figure.attrib["data-labels"] == "|1 <&>|3 <&>"
    assert figure.attrib["aria-label"] == 'in "all": 3 <&> now, at most 3 <&>'
    assert "none" in ET.fromstring(chart([], str, 5, "x")).attrib["aria-label"]


# ------------------------------------------------------------------ lists

COLUMNS = [Column("n", "N", "count", lambda n: n), Column("odd", "Odd", "text", lambda n: n % 2)]


def page(wish: Wish, count: int = 250) -> list[int]:
    return list(listed(range(count), COLUMNS, wish, lambda n: f"{n:04}", "-n").rows)


def test_a_list_is_filtered_sorted_and_cut_by_the_server() -> None:
    assert page(Wish())[:2] == [249, 248]
    assert len(page(Wish())) == 100
    assert page(Wish(sort="n"))[:2] == [0, 1]
    assert page(Wish(sort="-odd"))[:2] == [1, 3]
    assert page(Wish(q="24", sort="n", page=1)) == [24, 124, 224, *range(240, 250)]
    assert page(Wish(page=3))[-1] == 0
    assert page(Wish(page=99)) == page(Wish(page=3))
    assert page(Wish(q="no such")) == []
    assert page(Wish(sort="__class__")) == page(Wish())


def test_what_an_address_asks_for_is_bounded_and_nonsense_is_nothing() -> None:
    assert Wish.of({"page": "2", "q": "x" * 999}) == Wish("x" * 200, "", 2)
    for nonsense in ("-1", "0", "1e9", "٣", "9" * 30, ""):
        assert Wish.of({"page": nonsense}).page == 1
    assert Wish("a&b=<", "-n", 3).address(page=4) == "?q=a%26b%3D%3C&sort=-n&page=4"
    table = listed(range(3), COLUMNS, Wish(sort="-n"), str, "n")
    assert (table.sort_address(COLUMNS[0]), table.sort_address(COLUMNS[1])) == ("?sort=n", "?sort=odd")


# ------------------------------------------------------------------ values


def test_values_are_short_texts() -> None:
    assert text_of(None) == ""
    assert text_of("añ".encode()) == "añ"
    assert text_of(b"\xff\x00") == "base64:/wA="
    assert text_of({"a": [b"x", date(2026, 1, 2), Decimal("1.50"), None]}) == '{"a": ["x", "2026-01-02", "1.50", null]}'
    assert len(text_of(b"x" * 10**7)) == len(text_of("x" * 10**7)) == CELL_CHARACTERS_MAX + 1
    assert text_of("é".encode() * 10**6).startswith("éé")
    assert len(text_of(["y" * 10**6] * 100)) == CELL_CHARACTERS_MAX + 1
    assert text_of(float("nan")) == "nan"


def test_what_is_not_seen_and_what_is_markup_stays_text() -> None:
    shown = environment().from_string("<a title='{{ x }}'>{{ x }}</a>{{ nothing }}").render
    assert shown(x="<b>'\u202e\n", nothing=None) == "<a title='&lt;b&gt;&#39;\\u202e\\n'>&lt;b&gt;&#39;\\u202e\\n</a>"


def test_json_has_no_character_that_ends_a_script_and_no_number_that_json_lacks() -> None:
    written = as_json({"</script>": ["<!--&", float("nan"), float("inf"), {1}, ("\ud800", 2)]})
    assert not set(b"<>&") & set(written)
    assert json.loads(written) == {"</script>": ["<!--&", None, None, [1], ["\ud800", 2]]}


def test_figures_have_the_digits_that_say_something() -> None:
    assert [rate_text(each) for each in (None, 0, 0.04, 0.5, 12.4, 1234.5)] == ["", "0", "<0.1", "0.5", "12", "1,234"]
    assert metric_text(2048, "client_memory_bytes_max") == "2.0 KiB"
    assert metric_text(0.25, "observation_seconds") == "0.250 s"
    assert moment_text(1 << 62) == f"{1 << 62} µs"
    assert indented('{"a":1}') == '{\n  "a": 1\n}'
    assert indented("{no") == "{no"
    assert indented("[" * 100_000) == "[" * 100_000
