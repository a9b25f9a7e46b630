"""How messages are written: as they went in, as JSON, by a template."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import click
import pytest

from mq_cli.records import messages
from mq_cli.records.messages import MessageWriter
from mq_client import ConsumerRecord
from mq_protocol.sql.ddl import parse_schema

MESSAGE = ConsumerRecord("t", 3, 17, b"k", "grüße".encode(), (("h", b"v"), ("n", None)), 1_700_000_000_123_456)


def written(
    record: ConsumerRecord,
    capfdbinary: pytest.CaptureFixture[bytes],
    *,
    as_json: bool = False,
    template: str | None = None,
    for_terminal: bool = False,
) -> bytes:
    writer = MessageWriter(as_json=as_json, template=template, for_terminal=for_terminal)
    writer.write(record)
    writer.flush()
    return capfdbinary.readouterr().out


@pytest.mark.parametrize("value", [b"", b"plain", "snow \u2603 grüße".encode(), b"\xff\x00\xfe", b"tab\there"])
def test_a_value_comes_out_as_the_bytes_that_it_is(value: bytes, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert written(ConsumerRecord("t", 0, 0, None, value, (), 0), capfdbinary) == value + b"\n"


def test_a_terminal_is_given_no_byte_that_commands_it(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    evil = b"\x1b]0;title\x07\x9b2J\xc2\x9b2J\r\n\tok"
    record = ConsumerRecord("t", 0, 0, evil, evil, (("h\x1b", evil),), 0)
    escaped = rb"\x1b]0;title\x07\x9b2J\x9b2J\r" + b"\n\tok"
    assert written(record, capfdbinary, for_terminal=True) == escaped + b"\n"
    shown = written(record, capfdbinary, for_terminal=True, template="%k %h\x1b[0m\n")
    assert shown == escaped + rb" h\x1b=" + escaped + b"\x1b[0m\n", "the template is the user's own"
    text = ConsumerRecord("t", 0, 0, None, "\x9b2J\u202e\x1b".encode(), (), 0)
    line = written(text, capfdbinary, for_terminal=True, as_json=True)
    assert line.decode().rstrip("\n").isprintable()
    assert json.loads(line)["value"] == "\x9b2J\u202e\x1b"
    assert written(record, capfdbinary) == evil + b"\n", "a file or a pipe gets what was produced"


def test_json_has_the_whole_record_on_one_line(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    line = written(MESSAGE, capfdbinary, as_json=True)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "t",
        "partition": 3,
        "offset": 17,
        "timestamp": "2023-11-14T22:13:20.123456Z",
        "timestamp_us": 1_700_000_000_123_456,
        "key": "k",
        "value": "grüße",
        "headers": [{"key": "h", "value": "v"}, {"key": "n", "value": None}],
    }


def test_json_keeps_bytes_that_are_no_text(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    line = written(ConsumerRecord("t", 0, 0, None, b"\xff\x00", (), 0), capfdbinary, as_json=True)
    assert base64.b64decode(json.loads(line)["value"]["base64"]) == b"\xff\x00"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%t/%p@%o %k=%s\\n", "t/3@17 k=grüße\n"),
        ("%T\\t%h", "1700000000123\th=v,n="),
        ("%D", "2023-11-14T22:13:20.123456Z"),
        ("100%% \\\\ %s", "100% \\ grüße"),
        ("ü", "ü"),
    ],
)
def test_a_template_picks_fields(template: str, expected: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert written(MESSAGE, capfdbinary, template=template).decode() == expected


@pytest.mark.parametrize("template", ["%x", "abc%", "%"])
def test_a_template_that_means_nothing_is_misuse(template: str) -> None:
    with pytest.raises(click.BadParameter, match="means nothing"):
        MessageWriter(as_json=False, template=template)


def test_rows_are_json_whatever_they_hold() -> None:
    row: dict[str, Any] = {
        "when": datetime(2026, 1, 1, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("1.10"),
        "blob": b"\x00\xff",
        "nested": [{"a": None}, (1, 2.5, True)],
    }
    assert json.loads(messages.value_bytes(row)) == {
        "when": "2026-01-01T00:00:00Z",
        "day": "2026-01-02",
        "price": "1.10",
        "blob": {"base64": "AP8="},
        "nested": [{"a": None}, [1, 2.5, True]],
    }


MAPS = (
    "m map<string,int>, numbered map<int,string>, inner struct<tags: map<string,map<string,long>>>, many "
    "array<map<string,int>>, a array<int>"
)


def test_maps_whose_keys_are_text_are_objects_at_any_depth(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    row = {
        "m": [("a", 1), ("b", None)],
        "numbered": [(1, "one")],
        "inner": {"tags": [("x", [("y", 2)]), ("none", None)]},
        "many": [[("c", 3)], [], None],
        "a": [],
        "added": [("d", 4)],
    }
    empty = {"m": [], "numbered": [], "inner": None, "many": [], "a": [1]}
    twice = {"m": [("a", 1), ("a", 2)]}
    writer = MessageWriter(as_json=False, template=None)
    writer.knows(SimpleNamespace(typed=True, schema=parse_schema(MAPS)))  # type: ignore[arg-type]
    for value in (row, empty, twice):
        writer.write(ConsumerRecord("t", 0, 0, None, value, (), 0))
    writer.flush()
    assert [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()] == [
        {
            "m": {"a": 1, "b": None},
            "numbered": [[1, "one"]],
            "inner": {"tags": {"x": {"y": 2}, "none": None}},
            "many": [{"c": 3}, {}, None],
            "a": [],
            "added": [["d", 4]],
        },
        {"m": {}, "numbered": [], "inner": None, "many": [], "a": [1]},
        {"m": [["a", 1], ["a", 2]]},
    ]
