"""`tritonmq produce`: the lines of standard input, a message each.

It stops at the first line that is no message, or whose message did not arrive. What came before that line is sent, and
the command says which line it is. How lines become rows is in row_texts.py.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from mq_cli.connection import Connection, connection_options, milliseconds
from mq_cli.moments import TIME, WORDS, meaning, parse_moment, parse_time
from mq_cli.output import Progress, checking_what_was_typed, counted, counting, say
from mq_protocol.errors import OutcomeUnknown
from mq_protocol.names import parse_duration

if TYPE_CHECKING:
    import pyarrow as pa

    from mq_cli.output import Progress
    from mq_client import Producer, TopicDescription
    from mq_client.producing.futures import RecordFuture, TableFuture

READ_BYTES: Final = 1 << 18
LINE_BYTES_MAX: Final = 64 << 20
"""No message may be so long; a line that goes on is not held in memory."""


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


@dataclass(frozen=True, slots=True)
class _How:
    """How lines become messages, as the options say. `extras`: what every message has beside key and value; `due`:
    when it is to be published, if not at once, and its priority, if not the usual one."""

    separator: bytes | None
    partition: int | None
    as_csv: bool
    columns: list[str] | None
    gzipped: bool
    extras: Mapping[str, Any]
    due: Mapping[str, Any] = field(default_factory=dict)


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


@click.command()
@click.argument("topic")
@click.option(
    "--key-separator", "-K", metavar="TEXT", help="The text before the first TEXT in a line is the message's key."
)
@click.option(
    "--acks",
    type=click.Choice(["all", "leader", "none"]),
    default="all",
    show_default=True,
    help="Which replicas must have a message before it is acknowledged: all in sync, the leader, none.",
)
@click.option("--partition", "-p", type=click.IntRange(min=0), help="The partition. Default: by key, or in turn.")
@click.option(
    "--header",
    "-H",
    "headers",
    multiple=True,
    callback=_parse_headers,
    metavar="NAME=VALUE",
    help="A header of each message. May be repeated.",
)
@click.option(
    "--timestamp",
    callback=meaning(parse_moment, f"is not {WORDS}"),
    metavar="TIME",
    help=f"Of each message: {WORDS}. Default: now.",
)
@click.option("--delay", callback=_duration, metavar="DURATION", help="Publish the messages so much later, as 10m.")
@click.option("--at", callback=_later, metavar="TIME", help=f"Publish the messages then: {TIME}.")
@click.option(
    "--priority", type=click.IntRange(0, 31), help="Of each message: work queues lend higher ones first. Default: 4."
)
@click.option(
    "--ttl",
    callback=_duration,
    metavar="DURATION",
    help="How long after it is published work queues lend a message, as 10m. Default: for ever.",
)
@click.option(
    "--csv", "as_csv", is_flag=True, help="The input is CSV. Its first line names the columns, unless --columns does."
)
@click.option("--columns", metavar="NAME,…", help="The columns of a CSV input that has no header line.")
@click.option("--gzip", "gzipped", is_flag=True, help="The input is compressed with gzip.")
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4", "zstd", "gzip", "snappy"]),
    default="none",
    show_default=True,
    help="Codec of sent and stored batches. gzip stands for zstd, snappy for lz4.",
)
@click.option("--quiet", "-q", is_flag=True, help="Do not report how many messages were sent.")
@connection_options
def produce(
    topic: str,
    key_separator: str | None,
    acks: str,
    partition: int | None,
    headers: list[tuple[str, bytes]],
    timestamp: datetime | None,
    delay: int | None,
    at: datetime | None,
    priority: int | None,
    ttl: int | None,
    as_csv: bool,
    columns: str | None,
    gzipped: bool,
    compression: str,
    quiet: bool,
    connection: Connection,
) -> None:
    """Send the lines of standard input to TOPIC, a message each, as the bytes that they are.

    Ends when all are acknowledged. With `-K :` the line `a:b` is the message `b` with the key `a`. For a topic with a
    schema of its own each line is a JSON object of its columns, or with --csv a row of CSV. For a topic of records the
    columns of CSV are key and value.

    Stops at the first line that cannot be sent: the lines before it are, and the exit code is 1.
    """
    if key_separator == "":
        raise click.BadParameter("must not be empty", param_hint="--key-separator")
    if key_separator is not None and as_csv:
        raise click.UsageError("--key-separator and --csv are two ways to find the key: give one")
    if columns is not None and not as_csv:
        raise click.UsageError("--columns names the columns of CSV: give --csv as well")
    with connection.admin() as admin:
        described = admin.describe_topic(topic, auto_create=True)
    if described.typed and key_separator is not None:
        raise click.UsageError(
            f"topic {topic} has a schema of its own: its lines are JSON objects, without keys before them"
        )
    if described.typed and (headers or timestamp is not None):
        raise click.UsageError(
            f"topic {topic} has a schema of its own: its rows have no headers and no timestamp beside its columns"
        )
    extras: dict[str, Any] = {"headers": headers} if headers else {}
    if timestamp is not None:
        extras["timestamp"] = timestamp
    names = None if columns is None else columns.split(",")
    separator = None if key_separator is None else key_separator.encode()
    how = _How(separator, partition, as_csv, names, gzipped, extras, _due(delay, at, priority, ttl))
    from mq_client import Producer

    timeout_s, show = connection.timeout_s, not quiet and not sys.stdin.isatty()
    with checking_what_was_typed():
        to, timeout_ms = connection.for_client(), milliseconds(timeout_s)
        producer = Producer(**to, acks=acks, timeout_ms=timeout_ms, compression=compression)
    with producer:
        count = _send(producer, described, how, show=show, timeout_s=timeout_s, acks=acks)
    if not quiet:
        say(f"{counted(count, 'message')} {_arrived(acks)}")


def _due(delay: int | None, at: datetime | None, priority: int | None, ttl: int | None) -> dict[str, Any]:
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at are two ways to say when: give one")
    due: dict[str, Any] = {} if priority is None else {"priority": priority}
    if ttl is not None:
        due["ttl_ms"] = ttl
    return due | ({"delay_ms": delay} if delay is not None else {"deliver_at": at} if at is not None else {})


def _arrived(acks: str) -> str:
    return "sent" if acks == "none" else "acknowledged"


def _send(
    producer: Producer, described: TopicDescription, how: _How, *, show: bool, timeout_s: float, acks: str
) -> int:
    """How many messages have arrived. Raises `click.ClickException` saying where it stopped, if that is not the input's
    end."""
    from mq_cli.row_texts import UnreadableRow
    from mq_protocol.errors import TritonMQError

    ledger = Ledger()
    stopped: BaseException | None = None
    try:
        with counting(show=show) as progress:
            _feed(described, how)(producer, described, how, ledger, progress)
    except (TritonMQError, UnreadableRow, _BadInput, csv.Error, KeyboardInterrupt) as error:
        stopped = error
    at = ledger.line
    with contextlib.suppress(TritonMQError):  # the ledger knows which line it is of
        producer.flush()
    ledger.settle(timeout_s)
    arrived = counted(ledger.acknowledged, "message") if ledger.acknowledged else "nothing"
    if ledger.failure is not None:
        line, reason = ledger.failure
        raise click.ClickException(f"{arrived} {_arrived(acks)}, the first that is not is line {line}: {reason}")
    if isinstance(stopped, KeyboardInterrupt):
        say(f"{arrived} {_arrived(acks)}{_lines(at)}")
        raise stopped
    if stopped is not None:
        raise click.ClickException(f"{arrived} {_arrived(acks)}{_lines(at - 1)}, stopped at line {at}: {stopped}")
    return ledger.acknowledged


def _lines(last: int) -> str:
    return "" if last < 1 else " (line 1)" if last == 1 else f" (lines 1 to {last})"


def _feed(
    described: TopicDescription, how: _How
) -> Callable[[Producer, TopicDescription, _How, Ledger, Progress], None]:
    """What sends all of standard input, noting each line and message in the ledger."""
    if how.as_csv:
        return _send_csv
    return _send_rows if described.typed else _send_lines


def _send_lines(producer: Producer, described: TopicDescription, how: _How, ledger: Ledger, progress: Progress) -> None:
    topic, separator, partition = described.name, how.separator, how.partition
    extras = {**how.extras, **how.due}
    publish, add = producer.publish, ledger.add
    for lines in _blocks(_input(how), ledger):
        for value in lines:
            ledger.line += 1
            key = None
            if separator is not None and separator in value:  # a line without it has no key
                key, _, value = value.partition(separator)
            add(publish(topic, value, key=key, partition=partition, **extras))
        ledger.look()
        progress(ledger.sent)


def _send_rows(producer: Producer, described: TopicDescription, how: _How, ledger: Ledger, progress: Progress) -> None:
    from mq_cli.row_texts import JsonRows, JsonTables

    rows, tables = JsonRows(described.schema), JsonTables(described.schema)
    for lines in _blocks(_input(how), ledger):
        table = tables.read(lines)
        if table is not None and _sent_whole(producer, described.name, table, how, ledger):
            ledger.line += len(lines)
        else:
            for line in lines:
                ledger.line += 1
                if line and not line.isspace():
                    ledger.add(producer.publish(described.name, rows.row(line), partition=how.partition, **how.due))
        ledger.look()
        progress(ledger.sent)


def _sent_whole(producer: Producer, topic: str, table: pa.Table, how: _How, ledger: Ledger) -> bool:
    """False if one of the rows is refused: which one is found by sending them one at a time."""
    from mq_client import BatchTooLarge, SchemaMismatch

    try:
        future = producer.publish_batch(topic, table, partition=how.partition, **how.due)
    except (SchemaMismatch, BatchTooLarge):
        return False
    ledger.add_table(future, ledger.line + 1, table.num_rows)
    return True


def _send_csv(producer: Producer, described: TopicDescription, how: _How, ledger: Ledger, progress: Progress) -> None:
    from mq_cli.row_texts import CsvRows, UnreadableRow

    csv.field_size_limit(LINE_BYTES_MAX)
    text = io.TextIOWrapper(_input(how), "utf-8-sig", errors="surrogateescape", newline="")
    try:
        cells = csv.reader(text, strict=True)
        columns = how.columns
        ledger.line = 1
        if columns is None:
            columns = [name.strip() for name in next(cells, [])]
            if not columns:
                return
        if not described.typed and not {"value"} <= set(columns) <= {"key", "value"}:
            raise UnreadableRow(f"topic {described.name} holds records: the columns can be value, or key and value")
        rows = CsvRows(_record_columns() if not described.typed else described.schema, columns)
        while True:
            ledger.line = cells.line_num + 1  # a row in quotes may have several lines: the first counts
            found = next(cells, None)
            if found is None:
                return
            if not found:
                continue
            row = rows.row(found)
            if described.typed:
                ledger.add(producer.publish(described.name, row, partition=how.partition, **how.due))
            else:
                ledger.add(producer.publish(described.name, partition=how.partition, **row, **how.extras, **how.due))
            if ledger.sent % _LOOK == 0:
                ledger.look()
                progress(ledger.sent)
    finally:
        text.detach()  # else it would close standard input


_LOOK: Final = 1_000


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


def _input(how: _How) -> BinaryIO:
    stream = sys.stdin.buffer
    return io.BufferedReader(_Gzipped(stream), READ_BYTES) if how.gzipped else stream


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
