"""Where consuming begins, in words. Reading itself is tested on real brokers, in tests/cluster."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import click
import pyarrow as pa
import pytest

import mq_client
from mq_cli import consume
from mq_cli.main import DONE, INTERRUPTED, run
from mq_client.consuming.slices import StoredSlice
from mq_protocol.arrow import RECORD_SCHEMA


def parse(given: str) -> object:
    command = consume.consume
    return consume._parse_start(click.Context(command), command.params[1], given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("42", 42),
        ("2026-01-31T08:30:00Z", datetime(2026, 1, 31, 8, 30, tzinfo=UTC)),
        ("2026-01-31T10:30:00+02:00", datetime(2026, 1, 31, 8, 30, tzinfo=UTC)),
        ("2026-01-31T08:30", datetime(2026, 1, 31, 8, 30, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_a_start_is_a_word_an_offset_or_a_time(given: str, expected: object) -> None:
    assert parse(given) == expected


def test_a_start_may_be_how_long_ago() -> None:
    found = parse("15m")
    assert isinstance(found, datetime)
    assert 14 * 60 < (datetime.now(UTC) - found).total_seconds() < 60 * 60


@pytest.mark.parametrize("given", ["", "-1", "erliest", "yesterday", "2026-13-01", "1.5"])
def test_a_start_that_is_none_of_them_is_misuse(given: str) -> None:
    with pytest.raises(click.BadParameter, match="neither earliest, latest, an offset, nor a time"):
        parse(given)


class Kept:
    """Stands for a Reader and an output: topic `t` of records, each of whose messages was a batch of its own.

    `moments[partition][offset]` is when that message came, in seconds.
    """

    def __init__(self, moments: dict[int, list[int]], first: int = 0) -> None:
        self.moments = moments
        self.ranges = {partition: (first, len(times)) for partition, times in moments.items()}
        self.written: list[tuple[int, int]] = []

    def read_stored(self, _topic: str, partition: int, start: int, end: int) -> Iterator[StoredSlice]:
        assert self.ranges[partition][0] <= start <= end
        for offset in range(start, end):
            moment_us = self.moments[partition][offset] * 1_000_000
            row = {"value": b"", "timestamp": moment_us}
            batch = pa.RecordBatch.from_pylist([row], schema=RECORD_SCHEMA)
            yield StoredSlice(offset, offset + 1, moment_us, batch)

    def write(self, record: Any) -> None:
        self.written.append((record.partition, record.offset))

    def flush(self) -> None:
        pass


def tail(kept: Any, count: int, count_max: int | None = None) -> list[tuple[int, int]]:
    described: Any = SimpleNamespace(name="t", typed=False)
    assert consume._write_last(kept, described, kept.ranges, count, kept, count_max) == len(kept.written)
    return kept.written  # type: ignore[no-any-return]


def test_the_last_messages_of_all_partitions_together_are_written_by_their_time() -> None:
    moments = {0: [1, 3, 5, 7], 1: [2, 4, 6, 20, 21], 2: []}
    assert tail(Kept(moments), 3) == [(0, 3), (1, 3), (1, 4)]
    assert tail(Kept(moments), 5) == [(0, 2), (1, 2), (0, 3), (1, 3), (1, 4)]
    assert len(tail(Kept(moments), 100)) == 9
    assert tail(Kept(moments), 5, count_max=2) == [(0, 2), (1, 2)], "the first two of the last five"
    assert tail(Kept(moments, first=3), 100) == [(0, 3), (1, 3), (1, 4)], "those before were dropped"


def test_the_last_messages_are_the_newest_ones_in_whichever_partition_they_are() -> None:
    moments = {0: list(range(100, 200)), 1: list(range(100)), 2: list(range(200, 300))}
    assert tail(Kept(moments), 10) == [(2, offset) for offset in range(90, 100)]


def test_what_comes_after_the_last_messages_is_written_once() -> None:
    """The consumer has begun before the last messages were read: it gives some of them as well."""
    kept: Any = Kept({})
    coming = iter([(0, 4), (0, 5), (1, 0), (0, 6)])  # of partition 0 all below offset 5 are written

    def take(_timeout_ms: int) -> Any:
        partition, offset = next(coming)
        return SimpleNamespace(partition=partition, offset=offset)

    consumer: Any = SimpleNamespace(skipped=None, take=take)
    consume._write_as_they_come(consumer, kept, threading.Event(), 8, None, count=5, written={0: 5}, hint=False)
    assert kept.written == [(0, 5), (1, 0), (0, 6)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("asked", "code", "went"), [("subscribe", INTERRUPTED, []), ("read", DONE, ["on", "closed"])])
def test_asked_to_end_it_ends_at_once_or_after_the_message(
    number: signal.Signals, asked: str, code: int, went: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on: list[str] = []

    class Subscribing:
        skipped = None

        def __init__(self, *_: object, **__: object) -> None: ...

        def subscribe(self, _topic: str) -> None: ...

        def __enter__(self) -> Subscribing:
            return self.at("subscribe")

        def __exit__(self, *_: object) -> None:
            went_on.append("closed")

        def at(self, what: str) -> Subscribing:
            if what == asked and not went_on:  # the second time it is an interrupt in any case
                signal.raise_signal(number)
                went_on.append("on")
            return self

        def take(self, _timeout_ms: float) -> None:
            self.at("read")

    admin = SimpleNamespace(describe_topic=lambda *_, **__: SimpleNamespace(schema=RECORD_SCHEMA, typed=False))
    monkeypatch.setattr(consume, "open_admin", lambda *_: contextlib.nullcontext(admin))
    monkeypatch.setattr(mq_client, "Consumer", Subscribing)
    before = signal.getsignal(number)
    assert run(["consume", "t", "--timeout", "60"]) == code
    assert went_on == went
    assert signal.getsignal(number) is before
