"""`tritonmq consume`: the messages of a topic, on standard output, as they come.

Two ways to read. Without an end: pushed, through a Consumer. With `--exit-at-end`: what is there now, by offset,
through a Reader. What comes is written by messages.py.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import click

from mq_cli.commands import argument, command, flag, option, several
from mq_cli.connection import BOOTSTRAP, Connection, milliseconds
from mq_cli.interrupts import handling
from mq_cli.output import counting, say
from mq_cli.records.messages import MessageWriter
from mq_cli.values import LATEST, SOME_SECONDS, checking_what_was_typed, meaning, parse_place
from mq_protocol.limits import REQUEST_TIMEOUT_MS
from mq_protocol.queues.settings import MEMBER_PRIORITY_MAX

if TYPE_CHECKING:
    from mq_client import Admin, Consumer, ConsumerRecord, Reader, TopicDescription

_LOOK_MS = 200
"""How often a wait looks up to see whether it should end."""

_TAIL_MAX = 100_000
"""The last messages are held in memory, to be written in order of time."""

_QUIET_S = 1.0
"""After so long without a message somebody who began at the end is told of it."""

Start = str | int | datetime


@dataclass(frozen=True, slots=True)
class Reading:
    """Where to begin, when to end, and how what comes is written."""

    start: Start = option(
        "Where to begin; for a group, where it has no cursor. TIME is ISO 8601 (UTC without a zone), or 15m for 15 "
        "minutes ago.",
        "--from",
        callback=meaning(parse_place),
        default=LATEST,
        metavar="earliest|latest|OFFSET|TIME",
    )
    tail: int | None = option("Begin with the N newest messages.", type=click.IntRange(1, _TAIL_MAX), metavar="N")
    group: str | None = option("Read as a member of this group, and continue at its cursor.", "-G")
    broadcast: str | None = option(
        "Read as a member of this broadcast group: what comes while this command runs, and nothing else.",
        metavar="GROUP",
    )
    priority: int = option(
        "With --broadcast: while a member of a higher one is there, lower ones are given nothing.",
        type=click.IntRange(0, MEMBER_PRIORITY_MAX),
        default=0,
    )
    count_max: int | None = option("Exit after N messages.", "--max", type=click.IntRange(1), metavar="N")
    exit_at_end: bool = flag("Exit at the present end of the topic.", "-e")
    idle_s: float | None = option(
        "Exit when no message has arrived for this time.", "--timeout", type=SOME_SECONDS, metavar="SECONDS"
    )
    as_json: bool = flag("Write whole records, one JSON object per line.", "--json")
    template: str | None = option(
        "%t topic, %p partition, %o offset, %k key, %s value, %T time (ms), %D time (ISO 8601), %h headers, \\n, \\t.",
        "--format",
        "-f",
        metavar="TEXT",
    )
    raw: bool = flag("Write bytes unchanged to a terminal too. Default: control characters become escapes.")

    def check(self) -> None:
        """Refuse two options that say the same, and what does not go together."""
        if self.exit_at_end and self.group is not None:
            raise click.UsageError(
                "--exit-at-end reads by offset and touches no group: leave out --group, or end with --max or --timeout"
            )
        if self.tail is not None and (self.group is not None or self.start != LATEST):
            raise click.UsageError(
                "--tail says where to begin, as --from does, and a group begins where it is: give one of them"
            )
        if self.broadcast is None and self.priority:
            raise click.UsageError("--priority is about a broadcast group: give --broadcast GROUP too")
        if self.broadcast is not None:  # a member has no place in the log
            given = {"group": self.group is not None, "from": self.start != LATEST, "tail": self.tail is not None}
            for name in [name for name, is_given in {**given, "exit-at-end": self.exit_at_end}.items() if is_given]:
                raise click.UsageError(
                    "--broadcast gives what comes while this command runs, and has no place in the log: leave out "
                    f"--{name}"
                )
        if self.as_json and self.template is not None:
            raise click.UsageError("--json and --format are two ways to say the same: give one")

    def writer(self) -> MessageWriter:
        seen = sys.stdout.isatty()
        # In a group, what the cursor passes must have left our hands; a person wants to see what came.
        return MessageWriter(
            as_json=self.as_json,
            template=self.template,
            flush_each=self.group is not None or seen,
            for_terminal=seen and not self.raw,
        )


@command()
def consume(topic: str = argument(), reading: Reading = several(Reading), connection: Connection = BOOTSTRAP) -> None:
    """Write the messages of TOPIC to standard output as they come: values, a line each.

    Waits for more until Ctrl-C, unless told when to end.
    """
    from mq_client import Consumer, Reader

    reading.check()
    idle_s, start, tail = reading.idle_s, reading.start, reading.tail
    ask_ms = min(milliseconds(idle_s), REQUEST_TIMEOUT_MS) if idle_s is not None else REQUEST_TIMEOUT_MS
    writer = reading.writer()
    with connection.admin(ask_ms / 1000) as admin, _asked_to_end() as end:
        to = {**connection.for_client(), "timeout_ms": ask_ms}
        described = admin.describe_topic(topic, auto_create=not reading.exit_at_end)
        writer.knows(described)
        if reading.exit_at_end:
            if tail is None and start == LATEST:
                say("nothing is there from the end on; --from earliest reads what is there, --tail N the last N")
            with Reader(**to) as reader:
                log = _Log(reader, described, writer, reading.count_max)
                if tail is not None:
                    log.write_last(admin.offsets(topic), tail)
                else:
                    log.write_what_is_there(_ranges(admin, described, start), end)
        else:
            if isinstance(start, int) and reading.group is None:
                _check_offset(described, admin.offsets(topic), start)
            with checking_what_was_typed():
                consumer = Consumer(
                    **to, group=reading.group, start=start, broadcast=reading.broadcast, priority=reading.priority
                )
            consumer.subscribe(topic)
            with consumer:
                end.gently = True
                count, written = 0, dict[int, int]()
                if tail is not None:
                    # The consumer gets what comes from now on: what it has of these already is left out below.
                    ranges = admin.offsets(topic)
                    with Reader(**to) as reader:
                        count = _Log(reader, described, writer, reading.count_max).write_last(ranges, tail)
                    written = {partition: last for partition, (_, last) in ranges.items()}
                _write_as_they_come(consumer, writer, end, reading, count=count, written=written)
        writer.flush()


def _write_as_they_come(
    consumer: Consumer,
    writer: MessageWriter,
    end: threading.Event,
    reading: Reading,
    *,
    count: int,
    written: dict[int, int],
) -> None:
    """`count` messages are written already, in each partition those below the offset `written`."""
    last = began = time.monotonic()
    skipped = consumer.skipped
    hint = reading.start == LATEST and (reading.group or reading.broadcast or reading.tail) is None
    while not end.is_set() and (reading.count_max is None or count < reading.count_max):
        record = consumer.take(0)
        if consumer.skipped != skipped:
            skipped = consumer.skipped
            say(f"messages came while this command could not be reached, {skipped.records:,} at least by now")
        if record is None:
            writer.flush()
            if reading.idle_s is not None and time.monotonic() - last >= reading.idle_s:
                return
            if hint and time.monotonic() - began >= _QUIET_S:
                hint = False
                say("waiting for new messages; --from earliest reads what is there, --tail N the last N")
            record = consumer.take(_LOOK_MS)
        if record is not None:
            hint = False
            last = time.monotonic()
            if record.offset >= written.get(record.partition, 0):
                writer.write(record)
                count += 1


class _Log(NamedTuple):
    """What is stored of a topic, read by offset and written."""

    reader: Reader
    topic: TopicDescription
    writer: MessageWriter
    count_max: int | None

    def write_last(self, ranges: dict[int, tuple[int, int]], tail: int) -> int:
        """The last `tail` messages of all partitions together, in order of time. How many there were."""
        last: list[ConsumerRecord] = []
        for partition, (first, stop) in ranges.items():
            for records in self._stored(partition, max(first, stop - tail), stop):
                for record in records:
                    last.append(record)
                    if len(last) >= 2 * tail:
                        last = _newest(last, tail)
        last = _newest(last, tail)[: self.count_max]
        for record in last:
            self.writer.write(record)
        self.writer.flush()
        return len(last)

    def write_what_is_there(self, ranges: dict[int, tuple[int, int]], end: _End) -> None:
        """Partition after partition."""
        end.gently = True
        there = sum(max(0, stop - first) for first, stop in ranges.values())
        goal = there if self.count_max is None else min(there, self.count_max)
        count = 0
        with counting(show=not sys.stdout.isatty(), total=goal) as progress:
            for partition, (first, stop) in ranges.items():
                if count >= goal:
                    return
                for records in self._stored(partition, first, stop):
                    for record in records[: goal - count]:
                        self.writer.write(record)
                        count += 1
                    progress(count)
                    if count >= goal or end.is_set():
                        return

    def _stored(self, partition: int, first: int, stop: int) -> Iterator[list[ConsumerRecord]]:
        from mq_client.consuming.record_queue import batch_to_records

        if first >= stop:
            return
        name, typed = self.topic.name, self.topic.typed
        for piece in self.reader.read_stored(name, partition, first, stop):
            yield batch_to_records(piece.batch, name, partition, piece.base_offset, piece.timestamp_us, typed=typed)


def _newest(records: list[ConsumerRecord], count: int) -> list[ConsumerRecord]:
    return sorted(records, key=lambda record: (record.timestamp, record.partition, record.offset))[-count:]


def _ranges(admin: Admin, described: TopicDescription, start: Start) -> dict[int, tuple[int, int]]:
    """From where to where to read each partition, as it ends now."""
    kept = admin.offsets(described.name)
    match start:
        case "earliest":
            return kept
        case "latest":
            return {partition: (end, end) for partition, (_, end) in kept.items()}
        case datetime():
            begin = admin.offsets_at(described.name, round(start.timestamp() * 1_000_000))
            return {partition: (begin[partition], end) for partition, (_, end) in kept.items()}
        case _:
            _check_offset(described, kept, int(start))
            return {partition: (int(start), end) for partition, (_, end) in kept.items()}


def _check_offset(described: TopicDescription, kept: dict[int, tuple[int, int]], start: int) -> None:
    """Raises if no partition has got so far. A consumer would begin at the end without a word."""
    last = max((end for _, end in kept.values()), default=0)
    if start > last:
        raise click.ClickException(
            f"topic {described.name} ends at offset {last}: it has no offset {start} to begin at; "
            "--from latest waits for new messages, --tail N begins with the last N"
        )


class _End(threading.Event):
    """`gently`: reading has begun, and ends between two messages."""

    gently = False


@contextmanager
def _asked_to_end() -> Iterator[_End]:
    """Set by Ctrl-C or SIGTERM once it is to be `gently`, so that reading ends between two messages and a group's
    cursor is where the output is. Before, and the second time, it is an interrupt: what brokers are asked until a topic
    is subscribed to may take long, and nothing is lost by it."""
    end = _End()

    def ask(_number: int, _frame: FrameType | None) -> None:
        if end.is_set() or not end.gently:
            raise KeyboardInterrupt
        end.set()

    with handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM), ask)):
        yield end
