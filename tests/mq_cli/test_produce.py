"""How `tritonmq produce` reads its input; what it sends is shown on a real broker, in
tests/cluster/test_command_line.py."""

from __future__ import annotations

import gzip
import io
import sys
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import click
import pyarrow as pa
import pytest

from mq_cli import produce
from mq_cli.acknowledged import Ledger
from mq_client import BatchTooLarge, SchemaMismatch, UnknownTopic
from mq_client.producing.futures import BatchOutcome, RecordFuture, TableOutcome
from mq_protocol.sql.ddl import parse_schema

TABLE = pa.table({"n": [1, 2]})
HOW = produce._How(separator=None, partition=None, as_csv=False, columns=None, gzipped=False, extras={})
LINES = b"".join(b"line %d\n" % number for number in range(50_000))


def blocks(stream: io.BufferedIOBase, ledger: Ledger | None = None) -> list[bytes]:
    return [line for block in produce._blocks(stream, ledger or Ledger()) for line in block]  # type: ignore[arg-type]


def gunzipped(data: bytes) -> io.BufferedIOBase:
    return io.BufferedReader(produce._Gzipped(io.BytesIO(data)), produce.READ_BYTES)


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n\nb", LINES, b"x" * 3_000_000 + b"\nend"])
def test_lines_are_what_is_between_line_ends(text: bytes) -> None:
    expected = text.removesuffix(b"\n").split(b"\n") if text else []
    assert blocks(io.BytesIO(text)) == expected
    assert blocks(gunzipped(gzip.compress(text))) == expected


@pytest.mark.parametrize("data", [LINES, gzip.compress(LINES)[:-20]], ids=["plain text", "cut off"])
def test_input_that_is_not_or_not_all_of_gzip_is_refused(data: bytes) -> None:
    ledger = Ledger()
    with pytest.raises(produce._BadInput, match="not, or not all, of gzip"):
        blocks(gunzipped(data), ledger)
    assert ledger.line == 1, "no line was taken from the ledger here: it is the next one that cannot be read"


def test_a_line_without_end_is_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "LINE_BYTES_MAX", 1 << 20)
    ledger = Ledger()
    with pytest.raises(produce._BadInput, match="longer than 1 MiB"):
        blocks(io.BytesIO(b"x" * (3 << 20)), ledger)
    assert ledger.line == 1


class Sent:
    """Stands for a Producer: what is published, and in which line the ledger was then."""

    def __init__(self, ledger: Ledger) -> None:
        self.found: list[tuple[int, object]] = []
        self._ledger = ledger

    def publish(self, _topic: str, row: object, **_: object) -> RecordFuture:
        self.found.append((self._ledger.line, row))
        return RecordFuture(BatchOutcome("t"), 0)


def csv_sent(
    data: bytes, monkeypatch: pytest.MonkeyPatch, columns: list[str] | None = None
) -> list[tuple[int, object]]:
    described: Any = SimpleNamespace(name="t", typed=True, schema=parse_schema("id long, name string"))
    ledger = Ledger()
    producer: Any = Sent(ledger)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    how = produce._How(separator=None, partition=None, as_csv=True, columns=columns, extras={}, gzipped=False)
    produce._send_csv(producer, described, how, ledger, lambda _: None)
    return producer.found  # type: ignore[no-any-return]


def test_rows_of_csv_have_the_line_in_which_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    found = csv_sent(b'id,name\n1,"two\nlines"\n\n2,x\n', monkeypatch)
    assert found == [(2, {"id": 1, "name": "two\nlines"}), (5, {"id": 2, "name": "x"})]


def test_the_byte_order_mark_that_spreadsheets_write_is_no_part_of_a_name_or_a_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = b"\xef\xbb\xbf"
    for header in (b"id,name", b'"id","name"'):
        assert csv_sent(mark + header + b"\r\n1,x\r\n", monkeypatch) == [(2, {"id": 1, "name": "x"})]
    for row in (b"x,1", b'"x",1'):
        assert csv_sent(mark + row + b"\r\n", monkeypatch, ["name", "id"]) == [(1, {"name": "x", "id": 1})]


@pytest.mark.parametrize("error", [SchemaMismatch("a row does not fit"), BatchTooLarge("a row is too large")])
def test_rows_of_which_one_is_refused_are_sent_one_by_one(error: Exception) -> None:
    def refused(*_: object, **__: object) -> None:
        raise error

    ledger, producer = Ledger(), cast("Any", SimpleNamespace(publish_batch=refused))
    assert not produce._sent_whole(producer, "t", TABLE, HOW, ledger)
    assert ledger.sent == 0


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({"delay": "10m", "at": None}, {"delay_ms": 600_000}),
        ({"delay": None, "at": "2030-01-01T00:00:00Z"}, {"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}),
        ({"delay": None, "at": None}, {}),
        ({"delay": "10m", "at": None, "priority": 9}, {"delay_ms": 600_000, "priority": 9}),
        ({"delay": None, "at": None, "ttl": "10m"}, {"ttl_ms": 600_000}),
    ],
)
def test_messages_are_published_after_a_delay_or_at_a_time(options: dict[str, Any], due: dict[str, Any]) -> None:
    context, option = click.Context(produce.produce), click.Option(["--at"])
    delay = produce._parse_duration(context, option, options["delay"])
    ttl = produce._parse_duration(context, option, options.get("ttl"))
    assert produce._due(delay, produce._parse_at(context, option, options["at"]), options.get("priority"), ttl) == due
    sent: list[dict[str, Any]] = []

    def publish_batch(_topic: str, _table: pa.Table, **given: Any) -> object:
        sent.append(given)
        return TableOutcome("t", 2).complete()

    how = replace(HOW, due=due)
    assert produce._sent_whole(cast("Any", SimpleNamespace(publish_batch=publish_batch)), "t", TABLE, how, Ledger())
    assert sent == [{"partition": None, **due}]


@pytest.mark.parametrize("text", ["10m", "1h ago", "tomorrow", ""])
def test_how_long_ago_is_no_time_at_which_messages_are_published(text: str) -> None:
    with pytest.raises(click.BadParameter, match="--delay 10m"):
        produce._parse_at(click.Context(produce.produce), click.Option(["--at"]), text)


def test_a_delay_that_is_none_and_a_delay_beside_a_time_are_refused() -> None:
    with pytest.raises(click.BadParameter, match="10m"):
        produce._parse_duration(click.Context(produce.produce), click.Option(["--delay"]), "soon")
    with pytest.raises(click.UsageError, match="give one"):
        produce._due(5, datetime(2030, 1, 1, tzinfo=UTC), None, None)


def test_a_table_that_did_not_arrive_is_told_by_its_first_line() -> None:
    outcome = TableOutcome("t", 2)
    piece, future = outcome.piece(), outcome.complete()
    ledger, producer = Ledger(), cast("Any", SimpleNamespace(publish_batch=lambda *_, **__: future))
    ledger.line = 10  # the last one that was read
    assert produce._sent_whole(producer, "t", TABLE, HOW, ledger)
    piece.settle(None, UnknownTopic("gone"))
    ledger.settle(0)
    assert ledger.failure is not None
    assert ledger.failure[0] == 11
