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
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING

import click

from mq_cli.connection import Connection, bootstrap_option, milliseconds
from mq_cli.interrupts import handling
from mq_cli.messages import MessageWriter
from mq_cli.moments import LATEST, meaning, parse_place
from mq_cli.output import Seconds, checking_what_was_typed, counting, say
from mq_protocol.limits import REQUEST_TIMEOUT_MS
from mq_protocol.queue_settings import MEMBER_PRIORITY_MAX

if TYPE_CHECKING:
    from mq_client import Admin, Consumer, ConsumerRecord, Reader, TopicDescription

_LOOK_MS = 200
"""How often a wait looks up to see whether it should end."""

_TAIL_MAX = 100_000
"""The last messages are held in memory, to be written in order of time."""

_QUIET_S = 1.0
"""After so long without a message somebody who began at the end is told of it."""

Start = str | int | datetime


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    callback=meaning(parse_place),
    default=LATEST,
    show_default=True,
    metavar="earliest|latest|OFFSET|TIME",
    help=(
        "Where to begin; for a group, where it has no cursor. TIME is ISO 8601 (UTC without a zone), or 15m for 15 "
        "minutes ago."
    ),
)
@click.option("--tail", type=click.IntRange(1, _TAIL_MAX), metavar="N", help="Begin with the N newest messages.")
@click.option("--group", "-G", help="Read as a member of this group, and continue at its cursor.")
@click.option(
    "--broadcast",
    metavar="GROUP",
    help="Read as a member of this broadcast group: what comes while this command runs, and nothing else.",
)
@click.option(
    "--priority",
    type=click.IntRange(0, MEMBER_PRIORITY_MAX),
    default=0,
    show_default=True,
    help="With --broadcast: while a member of a higher one is there, lower ones are given nothing.",
)
@click.option("--max", "count_max", type=click.IntRange(min=1), metavar="N", help="Exit after N messages.")
@click.option("--exit-at-end", "-e", is_flag=True, help="Exit at the present end of the topic.")
@click.option(
    "--timeout",
    "idle_s",
    type=Seconds(min=0, min_open=True),
    metavar="SECONDS",
    help="Exit when no message has arrived for this time.",
)
@click.option("--json", "as_json", is_flag=True, help="Write whole records, one JSON object per line.")
@click.option(
    "--format",
    "-f",
    "template",
    metavar="TEXT",
    help="%t topic, %p partition, %o offset, %k key, %s value, %T time (ms), %D time (ISO 8601), %h headers, \\n, \\t.",
)
@click.option(
    "--raw", is_flag=True, help="Write bytes unchanged to a terminal too. Default: control characters become escapes."
)
@bootstrap_option
def consume(
    topic: str,
    start: Start,
    tail: int | None,
    group: str | None,
    broadcast: str | None,
    priority: int,
    count_max: int | None,
    exit_at_end: bool,
    idle_s: float | None,
    as_json: bool,
    template: str | None,
    raw: bool,
    connection: Connection,
) -> None:
    """Write the messages of TOPIC to standard output as they come: values, a line each.

    Waits for more until Ctrl-C, unless told when to end.
    """
    from mq_client import Consumer, Reader

    _check_options(broadcast, priority, start, tail, group, exit_at_end=exit_at_end)
    if as_json and template is not None:
        raise click.UsageError("--json and --format are two ways to say the same: give one")
    ask_ms = min(milliseconds(idle_s), REQUEST_TIMEOUT_MS) if idle_s is not None else REQUEST_TIMEOUT_MS
    seen = sys.stdout.isatty()
    # In a group, what the cursor passes must have left our hands; a person wants to see what came.
    writer = MessageWriter(
        as_json=as_json, template=template, flush_each=group is not None or seen, for_terminal=seen and not raw
    )
    with connection.admin(ask_ms / 1000) as admin, _asked_to_end() as end:
        to = {**connection.for_client(), "timeout_ms": ask_ms}
        described = admin.describe_topic(topic, auto_create=not exit_at_end)
        writer.knows(described)
        if exit_at_end and tail is not None:
            with Reader(**to) as reader:
                _write_last(reader, described, admin.offsets(topic), tail, writer, count_max)
        elif exit_at_end:
            if start == LATEST:
                say("nothing is there from the end on; --from earliest reads what is there, --tail N the last N")
            with Reader(**to) as reader:
                _write_what_is_there(reader, described, _ranges(admin, described, start), writer, end, count_max)
        else:
            if isinstance(start, int) and group is None:
                _check_offset(described, admin.offsets(topic), start)
            with checking_what_was_typed():
                consumer = Consumer(**to, group=group, start=start, broadcast=broadcast, priority=priority)
            consumer.subscribe(topic)
            with consumer:
                end.gently = True
                count, written = 0, dict[int, int]()
                if tail is not None:
                    # The consumer gets what comes from now on: what it has of these already is left out below.
                    ranges = admin.offsets(topic)
                    with Reader(**to) as reader:
                        count = _write_last(reader, described, ranges, tail, writer, count_max)
                    written = {partition: last for partition, (_, last) in ranges.items()}
                hint = start == LATEST and (group or broadcast or tail) is None
                _write_as_they_come(consumer, writer, end, count_max, idle_s, count=count, written=written, hint=hint)
        writer.flush()


def _check_options(
    broadcast: str | None, priority: int, start: Start, tail: int | None, group: str | None, *, exit_at_end: bool
) -> None:
    """Refuse two options that both say where to begin or where to end, and what does not go with a broadcast group."""
    if exit_at_end and group is not None:
        raise click.UsageError(
            "--exit-at-end reads by offset and touches no group: leave out --group, or end with --max or --timeout"
        )
    if tail is not None and (group is not None or start != LATEST):
        raise click.UsageError(
            "--tail says where to begin, as --from does, and a group begins where it is: give one of them"
        )
    _check_broadcast(broadcast, priority, start, tail, group, exit_at_end=exit_at_end)


def _check_broadcast(
    broadcast: str | None, priority: int, start: Start, tail: int | None, group: str | None, *, exit_at_end: bool
) -> None:
    """Refuse what a member of a broadcast group cannot have: a place in the log."""
    if broadcast is None:
        if priority:
            raise click.UsageError("--priority is about a broadcast group: give --broadcast GROUP too")
        return
    options = {"--group": group is not None, "--from": start != LATEST, "--tail": tail is not None}
    for name in [name for name, given in {**options, "--exit-at-end": exit_at_end}.items() if given]:
        raise click.UsageError(
            f"--broadcast gives what comes while this command runs, and has no place in the log: leave out {name}"
        )


def _write_as_they_come(
    consumer: Consumer,
    writer: MessageWriter,
    end: threading.Event,
    count_max: int | None,
    idle_s: float | None,
    *,
    count: int,
    written: dict[int, int],
    hint: bool,
) -> None:
    """`count` messages are written already, in each partition those below the offset `written`. `hint`: say so if
    nothing comes."""
    last = began = time.monotonic()
    skipped = consumer.skipped
    while not end.is_set() and (count_max is None or count < count_max):
        record = consumer.take(0)
        if consumer.skipped != skipped:
            skipped = consumer.skipped
            say(f"messages came while this command could not be reached, {skipped.records:,} at least by now")
        if record is None:
            writer.flush()
            if idle_s is not None and time.monotonic() - last >= idle_s:
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


def _write_last(
    reader: Reader,
    described: TopicDescription,
    ranges: dict[int, tuple[int, int]],
    tail: int,
    writer: MessageWriter,
    count_max: int | None,
) -> int:
    """Write the last `tail` messages of all partitions together, in order of time. How many there were."""
    last: list[ConsumerRecord] = []
    for partition, (first, stop) in ranges.items():
        for record in _stored(reader, described, partition, max(first, stop - tail), stop):
            last.append(record)
            if len(last) >= 2 * tail:
                last = _newest(last, tail)
    last = _newest(last, tail)[:count_max]
    for record in last:
        writer.write(record)
    writer.flush()
    return len(last)


def _newest(records: list[ConsumerRecord], count: int) -> list[ConsumerRecord]:
    return sorted(records, key=lambda record: (record.timestamp, record.partition, record.offset))[-count:]


def _stored(
    reader: Reader, described: TopicDescription, partition: int, first: int, stop: int
) -> Iterator[ConsumerRecord]:
    from mq_client.consuming.record_queue import batch_to_records

    if first >= stop:
        return
    for piece in reader.read_stored(described.name, partition, first, stop):
        yield from batch_to_records(
            piece.batch, described.name, partition, piece.base_offset, piece.timestamp_us, typed=described.typed
        )


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


def _write_what_is_there(
    reader: Reader,
    described: TopicDescription,
    ranges: dict[int, tuple[int, int]],
    writer: MessageWriter,
    end: _End,
    count_max: int | None,
) -> None:
    """Partition after partition."""
    end.gently = True
    from mq_client.consuming.record_queue import batch_to_records

    there = sum(max(0, stop - first) for first, stop in ranges.values())
    goal = there if count_max is None else min(there, count_max)
    count = 0
    with counting(show=not sys.stdout.isatty(), total=goal) as progress:
        for partition, (first, stop) in ranges.items():
            if first >= stop or count >= goal:
                continue
            for piece in reader.read_stored(described.name, partition, first, stop):
                records = batch_to_records(
                    piece.batch, described.name, partition, piece.base_offset, piece.timestamp_us, typed=described.typed
                )
                for record in records[: goal - count]:
                    writer.write(record)
                    count += 1
                progress(count)
                if count >= goal or end.is_set():
                    return


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
