"""`tritonmq produce`: the lines of standard input, a message each.

It stops at the first line that is no message, or whose message did not arrive. What came before that line is sent, and
the command says which line it is. How lines become rows is in row_texts.py.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import select
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import click

from mq_cli.commands import argument, command, flag, option, several
from mq_cli.connection import CONNECTION, Connection, milliseconds
from mq_cli.output import Progress, counted, counting, say
from mq_cli.values import TIME, WORDS, checking_what_was_typed, meaning, parse_moment, parse_time
from mq_protocol.errors import BatchTooLarge, OutcomeUnknown, SchemaMismatch, TritonMQError
from mq_protocol.names import parse_duration

if TYPE_CHECKING:
    import pyarrow as pa

    from mq_cli.output import Progress
    from mq_client import Producer, TopicDescription
    from mq_client.producing.futures import RecordFuture, TableFuture

READ_BYTES: Final = 1 << 18
LINE_BYTES_MAX: Final = 64 << 20
"""No message may be so long; a line that goes on is not held in memory."""

_HEARD_S: Final = 0.2
"""Ctrl-C is heard so much later, at the latest."""


@dataclass(slots=True)
class _Run:
    """Messages that share one answer. `line`: of the first of them."""

    line: int
    future: Future[Any]
    count: int


class Ledger:
    """Owns the futures of what was sent, one for each batch of the producer, until they are answered.

    `line`: the one that is being read. `acknowledged`: messages whose answer was good. `failure`: the first line (as
    lines go) whose message did not arrive, as far as is known, and why.
    """

    def __init__(self) -> None:
        self.line = 0
        self.sent = 0
        self.acknowledged = 0
        self.failure: tuple[int, BaseException] | None = None
        self._open: dict[object, _Run] = {}

    def add(self, future: RecordFuture) -> None:
        """The message of the present line. Messages of one batch have one outcome."""
        self.sent += 1
        run = self._open.get(future.outcome)
        if run is None:
            self._open[future.outcome] = _Run(self.line, future, 1)
        else:
            run.count += 1

    def add_table(self, future: TableFuture, line: int, count: int) -> None:
        """A table of `count` messages, whose first is of that line."""
        self.sent += count
        self._open[future] = _Run(line, future, count)

    def look(self) -> None:
        """Count what has been answered by now. Raises the error of a message that did not arrive."""
        while self._open:
            key, run = next(iter(self._open.items()))
            if not run.future.done():
                return
            del self._open[key]
            self._count(run, 0)
            if self.failure is not None:
                raise self.failure[1]

    def settle(self, timeout_s: float) -> None:
        """Count everything, waiting so long for answers that are missing."""
        deadline = time.monotonic() + timeout_s
        for run in self._open.values():
            self._count(run, max(0.0, deadline - time.monotonic()))
        self._open.clear()

    def _count(self, run: _Run, timeout_s: float) -> None:
        try:
            error = run.future.exception(timeout_s)
        except TimeoutError:
            error = OutcomeUnknown("no answer came in time: it may be there or not")
        if error is None:
            self.acknowledged += run.count
        elif self.failure is None or run.line < self.failure[0]:
            self.failure = run.line, error


class _BadInput(Exception):
    """What comes cannot be read on."""


class _Interruptible(io.RawIOBase):
    """Standard input, of which Ctrl-C ends a read even if it comes right before: Python hears of a signal before a
    system call or after it, and one that comes between is heard after it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not select.select([self._descriptor], [], [], _HEARD_S)[0]:
            pass
        return os.readv(self._descriptor, [buffer])


class _Gzipped(io.RawIOBase):
    """What was compressed by gzip, as it was before. Raises `_BadInput`."""

    def __init__(self, stream: BinaryIO) -> None:
        self._file = gzip.GzipFile(fileobj=stream)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read1(len(buffer))
        except (EOFError, OSError, zlib.error) as error:
            raise _BadInput(f"the input is not, or not all, of gzip: {error}") from None
        buffer[: len(data)] = data
        return len(data)


_duration = meaning(parse_duration, "is no duration: give e.g. 500 (milliseconds), 90s, 10m or 7d")


def _parse_headers(_ctx: click.Context, _param: click.Parameter, pairs: tuple[str, ...]) -> list[tuple[str, bytes]]:
    headers = []
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
        headers.append((name, value.encode()))
    return headers


_later = meaning(parse_time, f"is not {TIME}. For so much later give --delay, as --delay 10m")
"""A time alone: `10m` means ten minutes ago elsewhere, and whoever writes it here means later."""


@dataclass(frozen=True, slots=True)
class How:
    """How lines become messages, and are sent."""

    key_separator: str | None = option(
        "The text before the first TEXT in a line is the message's key.", "-K", metavar="TEXT"
    )
    acks: str = option(
        "Which replicas must have a message before it is acknowledged: all in sync, the leader, none.",
        type=click.Choice(["all", "leader", "none"]),
        default="all",
    )
    partition: int | None = option("The partition. Default: by key, or in turn.", "-p", type=click.IntRange(0))
    headers: list[tuple[str, bytes]] = option(
        "A header of each message. May be repeated.",
        "--header",
        "-H",
        multiple=True,
        callback=_parse_headers,
        metavar="NAME=VALUE",
    )
    timestamp: datetime | None = option(
        f"Of each message: {WORDS}. Default: now.", callback=meaning(parse_moment, f"is not {WORDS}"), metavar="TIME"
    )
    delay: int | None = option("Publish the messages so much later, as 10m.", callback=_duration, metavar="DURATION")
    at: datetime | None = option(f"Publish the messages then: {TIME}.", callback=_later, metavar="TIME")
    priority: int | None = option(
        "Of each message: work queues lend higher ones first. Default: 4.", type=click.IntRange(0, 31)
    )
    ttl: int | None = option(
        "How long after it is published work queues lend a message, as 10m. Default: for ever.",
        callback=_duration,
        metavar="DURATION",
    )
    as_csv: bool = flag("The input is CSV. Its first line names the columns, unless --columns does.", "--csv")
    columns: str | None = option("The columns of a CSV input that has no header line.", metavar="NAME,…")
    gzipped: bool = flag("The input is compressed with gzip.", "--gzip")
    compression: str = option(
        "Codec of sent and stored batches. gzip stands for zstd, snappy for lz4.",
        type=click.Choice(["none", "lz4", "zstd", "gzip", "snappy"]),
        default="none",
    )
    quiet: bool = flag("Do not report how many messages were sent.", "-q")

    def check(self) -> None:
        if self.key_separator == "":
            raise click.BadParameter("must not be empty", param_hint="--key-separator")
        if self.key_separator is not None and self.as_csv:
            raise click.UsageError("--key-separator and --csv are two ways to find the key: give one")
        if self.columns is not None and not self.as_csv:
            raise click.UsageError("--columns names the columns of CSV: give --csv as well")

    def check_for(self, topic: TopicDescription) -> None:
        has_schema = f"topic {topic.name} has a schema of its own"
        if topic.typed and self.key_separator is not None:
            raise click.UsageError(f"{has_schema}: its lines are JSON objects, without keys before them")
        if topic.typed and (self.headers or self.timestamp is not None):
            raise click.UsageError(f"{has_schema}: its rows have no headers and no timestamp beside its columns")
        if self.delay is not None and self.at is not None:
            raise click.UsageError("--delay and --at are two ways to say when: give one")

    def extras(self) -> dict[str, Any]:
        """What every message has beside key and value, where that is not the usual."""
        said = {
            "headers": self.headers or None,
            "timestamp": self.timestamp,
            "partition": self.partition,
            "priority": self.priority,
            "ttl_ms": self.ttl,
            "delay_ms": self.delay,
            "deliver_at": self.at,
        }
        return {name: value for name, value in said.items() if value is not None}

    @property
    def arrived(self) -> str:
        return "sent" if self.acks == "none" else "acknowledged"

    def input(self) -> BinaryIO:
        stream: BinaryIO = sys.stdin.buffer
        if isinstance(stream, io.BufferedReader):  # and not what stands in for it
            stream = io.BufferedReader(_Interruptible(stream.fileno()), READ_BYTES)
        return io.BufferedReader(_Gzipped(stream), READ_BYTES) if self.gzipped else stream


@command()
def produce(topic: str = argument(), how: How = several(How), connection: Connection = CONNECTION) -> None:
    """Send the lines of standard input to TOPIC, a message each, as the bytes that they are.

    Ends when all are acknowledged. With `-K :` the line `a:b` is the message `b` with the key `a`. For a topic with a
    schema of its own each line is a JSON object of its columns, or with --csv a row of CSV. For a topic of records the
    columns of CSV are key and value.

    Stops at the first line that cannot be sent: the lines before it are, and the exit code is 1.
    """
    how.check()
    with connection.admin() as admin:
        described = admin.describe_topic(topic, auto_create=True)
    how.check_for(described)
    from mq_client import Producer

    timeout_s, show = connection.timeout_s, not how.quiet and not sys.stdin.isatty()
    with checking_what_was_typed():
        to, timeout_ms = connection.for_client(), milliseconds(timeout_s)
        producer = Producer(**to, acks=how.acks, timeout_ms=timeout_ms, compression=how.compression)
    with producer:
        count = _Sending(producer, described, how, Ledger()).to_the_end(timeout_s, show=show)
    if not how.quiet:
        say(f"{counted(count, 'message')} {how.arrived}")


class _Sending(NamedTuple):
    """Sends all of standard input, noting each line and message in the ledger."""

    producer: Producer
    topic: TopicDescription
    how: How
    ledger: Ledger

    def to_the_end(self, timeout_s: float, *, show: bool) -> int:
        """How many messages have arrived. Raises `click.ClickException` saying where it stopped, if that is not the
        input's end."""
        from mq_cli.records.row_texts import UnreadableRow

        ledger = self.ledger
        stopped: BaseException | None = None
        try:
            with counting(show=show) as progress:
                feed = self._csv if self.how.as_csv else self._rows if self.topic.typed else self._lines
                feed(progress)
        except (TritonMQError, UnreadableRow, _BadInput, csv.Error, KeyboardInterrupt) as error:
            stopped = error
        at = ledger.line
        with contextlib.suppress(TritonMQError):  # the ledger knows which line it is of
            self.producer.flush()
        ledger.settle(timeout_s)
        arrived = f"{counted(ledger.acknowledged, 'message') if ledger.acknowledged else 'nothing'} {self.how.arrived}"
        if ledger.failure is not None:
            line, reason = ledger.failure
            raise click.ClickException(f"{arrived}, the first that is not is line {line}: {reason}")
        if isinstance(stopped, KeyboardInterrupt):
            say(f"{arrived}{_lines(at)}")
            raise stopped
        if stopped is not None:
            raise click.ClickException(f"{arrived}{_lines(at - 1)}, stopped at line {at}: {stopped}")
        return ledger.acknowledged

    def _lines(self, progress: Progress) -> None:
        separator = None if self.how.key_separator is None else self.how.key_separator.encode()
        topic, extras, ledger = self.topic.name, self.how.extras(), self.ledger
        publish, add = self.producer.publish, ledger.add
        for lines in _blocks(self.how.input(), ledger):
            for value in lines:
                ledger.line += 1
                key = None
                if separator is not None and separator in value:  # a line without it has no key
                    key, _, value = value.partition(separator)
                add(publish(topic, value, key=key, **extras))
            self._look(progress)

    def _rows(self, progress: Progress) -> None:
        from mq_cli.records.row_texts import JsonRows, JsonTables

        name, extras, ledger = self.topic.name, self.how.extras(), self.ledger
        rows, tables = JsonRows(self.topic.schema), JsonTables(self.topic.schema)
        for lines in _blocks(self.how.input(), ledger):
            table = tables.read(lines)
            if table is not None and self._sent_whole(table, extras):
                ledger.line += len(lines)
            else:
                for line in lines:
                    ledger.line += 1
                    if line and not line.isspace():
                        ledger.add(self.producer.publish(name, rows.row(line), **extras))
            self._look(progress)

    def _sent_whole(self, table: pa.Table, extras: Mapping[str, Any]) -> bool:
        """False if one of the rows is refused: which one is found by sending them one at a time."""
        try:
            future = self.producer.publish_batch(self.topic.name, table, **extras)
        except (SchemaMismatch, BatchTooLarge):
            return False
        self.ledger.add_table(future, self.ledger.line + 1, table.num_rows)
        return True

    def _csv(self, progress: Progress) -> None:
        from mq_cli.records.row_texts import CsvRows, UnreadableRow

        csv.field_size_limit(LINE_BYTES_MAX)
        topic, extras, ledger = self.topic, self.how.extras(), self.ledger
        text = io.TextIOWrapper(self.how.input(), "utf-8-sig", errors="surrogateescape", newline="")
        try:
            cells = csv.reader(text, strict=True)
            columns = None if self.how.columns is None else self.how.columns.split(",")
            ledger.line = 1
            if columns is None:
                columns = [name.strip() for name in next(cells, [])]
                if not columns:
                    return
            if not topic.typed and not {"value"} <= set(columns) <= {"key", "value"}:
                raise UnreadableRow(f"topic {topic.name} holds records: the columns can be value, or key and value")
            rows = CsvRows(_record_columns() if not topic.typed else topic.schema, columns)
            while True:
                ledger.line = cells.line_num + 1  # a row in quotes may have several lines: the first counts
                found = next(cells, None)
                if found is None:
                    return
                if not found:
                    continue
                row = rows.row(found)
                if topic.typed:
                    ledger.add(self.producer.publish(topic.name, row, **extras))
                else:
                    ledger.add(self.producer.publish(topic.name, **row, **extras))
                if ledger.sent % _LOOK == 0:
                    self._look(progress)
        finally:
            text.detach()  # else it would close standard input

    def _look(self, progress: Progress) -> None:
        self.ledger.look()
        progress(self.ledger.sent)


_LOOK: Final = 1_000


def _lines(last: int) -> str:
    return "" if last < 1 else " (line 1)" if last == 1 else f" (lines 1 to {last})"


def _record_columns() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("key", pa.binary()), ("value", pa.binary())])


def _read(stream: BinaryIO, ledger: Ledger) -> bytes:
    try:
        data: bytes = stream.read1(READ_BYTES)  # type: ignore[attr-defined]
    except _BadInput:
        ledger.line += 1
        raise
    return data


def _blocks(stream: BinaryIO, ledger: Ledger) -> Iterator[list[bytes]]:
    """Lines without their ends, as many at a time as are there: what comes slowly is sent at once."""
    rest: list[bytes] = []
    held = 0
    while data := _read(stream, ledger):
        head, end, tail = data.rpartition(b"\n")
        if end:
            yield b"".join([*rest, head]).split(b"\n")
            rest, held = [], 0
        rest.append(tail)
        held += len(tail)
        if held > LINE_BYTES_MAX:
            ledger.line += 1
            raise _BadInput(f"it is longer than {LINE_BYTES_MAX >> 20} MiB, and no message may be")
    if held:
        yield [b"".join(rest)]
