"""`tritonmq produce`: the lines of standard input, a message each."""

from __future__ import annotations

import io
import sys
from collections import deque
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from mq_cli.output import (
    InputFault,
    bootstrap_option,
    checking_what_was_typed,
    counted,
    counting,
    milliseconds,
    open_admin,
    say,
    timeout_option,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from mq_cli.output import Progress
    from mq_client import Producer

SAMPLE = 1_000
"""Of so many messages one future is looked at while reading goes on: if the topic is gone, end early. `flush` tells of the rest."""

ROWS_AT_ONCE = 1_000


@click.command()
@click.argument("topic")
@click.option("--key-separator", "-K", metavar="TEXT", help="What stands before the first TEXT in a line is the message's key.")
@click.option(
    "--acks",
    type=click.Choice(["all", "leader", "none"]),
    default="all",
    show_default=True,
    help="Who must have a message before it counts as sent: every in-sync broker, the leader, nobody.",
)
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Default: by key, or in turn.")
@click.option("--quiet", "-q", is_flag=True, help="Do not say how many were sent.")
@bootstrap_option
@timeout_option
def produce(
    topic: str, key_separator: str | None, acks: str, partition: int | None, quiet: bool, bootstrap: str, timeout_s: float
) -> None:
    """Send the lines of standard input to TOPIC, a message each, as the bytes that they are.

    Ends when all are acknowledged. With `-K :` the line `a:b` is the message `b` with the key `a`. For a topic with a schema of its
    own each line is a JSON object of its columns.
    """
    if key_separator == "":
        raise click.BadParameter("must not be empty", param_hint="--key-separator")
    with open_admin(bootstrap, timeout_s) as admin:
        described = admin.describe_topic(topic)
    if described.typed and key_separator is not None:
        raise click.UsageError(f"topic {topic} has a schema of its own: its lines are JSON objects, without keys before them")
    from mq_client import Producer

    with checking_what_was_typed():
        producer = Producer(bootstrap, acks=acks, timeout_ms=milliseconds(timeout_s))
    with producer, counting(show=not quiet and not sys.stdin.isatty()) as progress:
        if described.typed:
            count = _send_rows(producer, topic, described.schema, partition, progress)
        else:
            separator = None if key_separator is None else key_separator.encode()
            count = _send_lines(producer, topic, separator, partition, progress)
        producer.flush()
    if not quiet:
        say(f"{counted(count, 'message')} {'sent' if acks == 'none' else 'acknowledged'}")


def _send_lines(producer: Producer, topic: str, separator: bytes | None, partition: int | None, progress: Progress) -> int:
    samples: deque[Future[Any]] = deque()
    count = 0
    for line in sys.stdin.buffer:
        value = line.removesuffix(b"\n")
        key = None
        if separator is not None and separator in value:  # a line without it has no key
            key, _, value = value.partition(separator)
        future = producer.publish(topic, value, key=key, partition=partition)
        count += 1
        if count % SAMPLE == 0:
            samples.append(future)
            while samples and samples[0].done():
                samples.popleft().result()
            progress(count)
    return count


def _send_rows(producer: Producer, topic: str, schema: pa.Schema, partition: int | None, progress: Progress) -> int:
    from pyarrow import ArrowInvalid, ArrowNotImplementedError, json

    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    at_once = 1 if sys.stdin.isatty() else ROWS_AT_ONCE
    futures: deque[Future[Any]] = deque()
    count = 0
    while lines := list(islice(sys.stdin.buffer, at_once)):
        try:
            rows = json.read_json(io.BytesIO(b"".join(lines)), parse_options=options)
        except (ArrowInvalid, ArrowNotImplementedError) as error:
            where = f"line {count + 1}" if len(lines) == 1 else f"lines {count + 1} to {count + len(lines)}"
            raise InputFault(f"{where}: not JSON objects of the columns of {topic}: {error}") from error
        futures.append(producer.publish_batch(topic, rows, partition=partition))
        while futures and futures[0].done():
            futures.popleft().result()
        count += rows.num_rows
        progress(count)
    return count
