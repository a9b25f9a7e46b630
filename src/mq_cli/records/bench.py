"""`tritonmq bench`: how fast this cluster is from here, on a topic of its own that is deleted afterwards.

One process, one producer or consumer: a figure of what a program gets, and not of what the brokers could give to many.
"""

from __future__ import annotations

import random
import struct
import threading
import time
import uuid
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import click
import numpy as np

from mq_cli.commands import command_group, option, several
from mq_cli.connection import Connection
from mq_cli.output import JSON, bytes_text, counted, say, write, write_json
from mq_cli.values import Seconds

if TYPE_CHECKING:
    from mq_client import Admin

_STAMP: Final = struct.Struct("<q")
_MANY: Final = 5_000
_REPLICAS_USUAL: Final = 3
_VALUES: Final = 256
"""Different values: random bytes, which compress as little as a user's worst."""

SAMPLES_MAX: Final = 1 << 20
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


class Samples:
    """Keeps every duration, in seconds; of more than `SAMPLES_MAX` every second one, then every fourth, and so on. The
    longest is never left out."""

    def __init__(self, samples_max: int = SAMPLES_MAX) -> None:
        self._samples_max = samples_max
        self._kept = array("d")
        self._every = 1
        self.count = 0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        if self.count % self._every == 0:
            if len(self._kept) == self._samples_max:
                self._kept = self._kept[::2]
                self._every *= 2
            if self.count % self._every == 0:
                self._kept.append(seconds)
        self.count += 1
        self.longest = max(self.longest, seconds)

    def milliseconds(self) -> dict[str, float]:
        """`p50`, `p90`, `p99`, `p99.9` and `max`, in milliseconds; empty without a sample."""
        if not self.count:
            return {}
        found = np.percentile(np.asarray(self._kept), PERCENTILES) * 1000
        named = {f"p{each:g}": round(float(value), 3) for each, value in zip(PERCENTILES, found, strict=True)}
        return {**named, "max": round(self.longest * 1000, 3)}


@command_group()
def bench() -> None:
    """Measure this cluster from here, on a topic that is made for it and deleted afterwards.

    The brokers do their usual work meanwhile, and what this adds slows it down.
    """


_TIMEOUT_FIRST = sorted(fields(Connection), key=lambda each: each.name != "timeout_s")


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured with, and how it is told."""

    connection: Connection = several({each.name: each for each in _TIMEOUT_FIRST}, make=Connection.typed)
    as_json: bool = JSON
    durability: str = option(type=click.Choice(["fsync", "os", "memory"]), default="fsync")
    replicas: int | None = option("Default: 3, or as many as there are brokers.", type=click.IntRange(1))
    partitions: int = option(type=click.IntRange(1, 1000), default=3)
    size: int = option("Bytes a record.", type=click.IntRange(8, 1 << 20), default=100)

    @contextmanager
    def topic(self) -> Iterator[str]:
        """A topic of its own, deleted afterwards, whatever happened."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        with self.connection.admin() as admin:
            replicas = self.replicas or min(_REPLICAS_USUAL, len(admin.describe_cluster().brokers))
            admin.create_topic(name, partitions=self.partitions, replicas=replicas, durability=self.durability)
            try:
                yield name
            finally:
                _delete(admin, name)

    def values(self) -> list[bytes]:
        chosen = random.Random(1)  # noqa: S311 - a filling
        return [chosen.randbytes(self.size) for _ in range(_VALUES)]

    def tell(self, what: str, records: int, took_s: float, samples: Samples, word: str) -> None:
        told, size = samples.milliseconds(), self.size
        if self.as_json:
            write_json(
                {
                    "what": what,
                    "records": records,
                    "record_bytes": size,
                    "seconds": round(took_s, 3),
                    "records_per_second": round(records / took_s, 1),
                    "bytes_per_second": round(records * size / took_s),
                    "latency_ms": told,
                }
            )
            return
        rate = f"{records / took_s:,.0f} records/s, {bytes_text(round(records * size / took_s))}/s"
        write(f"{counted(records, 'record')} of {size} bytes in {took_s:.1f} s: {rate}")
        if told:
            write(f"{word}: " + ", ".join(f"{name} {value:,.1f} ms" for name, value in told.items()))


BENCH: Final = several(Bench)
SECONDS: Final = option(type=Seconds(min=0.1, max=3600), default=10.0, metavar="SECONDS")


@bench.command()
def produce(
    seconds: float = SECONDS,
    acks: str = option(type=click.Choice(["all", "leader", "none"]), default="all"),
    rate: int | None = option("Records a second. Default: as many as it can.", type=click.IntRange(1)),
    run: Bench = BENCH,
) -> None:
    """Publish records one at a time: records a second, and how long each took to be acknowledged."""
    from mq_client import Producer

    with run.topic() as topic, Producer(**run.connection.for_client(), acks=acks) as producer:
        values, took, lock = run.values(), Samples(), threading.Lock()

        def acknowledged(due: float) -> Callable[[object], None]:
            def note(_future: object) -> None:
                now = time.perf_counter()
                with lock:
                    took.add(now - due)

            return note

        producer.publish(topic, values[0]).result()
        began, sent = time.perf_counter(), 0
        for due in _moments(began, seconds, rate):
            future = producer.publish(topic, values[sent % _VALUES])
            if rate is not None or sent % 64 == 0:  # to look at each would be a third of the cost
                future.add_done_callback(acknowledged(due))
            sent += 1
        producer.flush()
        run.tell("produce", sent, time.perf_counter() - began, took, "acknowledged after")


@bench.command()
def consume(
    records: int = option(type=click.IntRange(1, 1_000_000_000), default=1_000_000), run: Bench = BENCH
) -> None:
    """Fill a topic, then have one consumer take all of it: records a second."""
    from mq_client import Consumer, Producer

    with run.topic() as topic:
        values = run.values()
        with Producer(**run.connection.for_client()) as producer:
            for first in range(0, records, _MANY):
                some = min(_MANY, records - first)
                producer.publish_many(topic, [values[number % _VALUES] for number in range(some)])
        say(f"{counted(records, 'record')} published, now they are consumed")
        with Consumer(**run.connection.for_client(), start="earliest") as consumer:
            consumer.subscribe(topic)
            began, got = time.perf_counter(), 0
            while got < records:
                if consumer.take(run.connection.timeout_s * 1000) is None:
                    raise click.ClickException(
                        f"{got} of {records} records came, and then none for {run.connection.timeout_s:g} s"
                    )
                got += 1
        run.tell("consume", records, time.perf_counter() - began, Samples(), "")


@bench.command()
def latency(
    seconds: float = SECONDS,
    rate: int = option("Records a second.", type=click.IntRange(1, 100_000), default=1_000),
    run: Bench = BENCH,
) -> None:
    """Publish at a steady rate, and say how long each record takes until a consumer has it.

    Counted from the moment at which a record was due: one that had to wait for others is not let off.
    """
    from mq_client import Consumer, Producer

    to, took, began = run.connection.for_client(), Samples(), time.perf_counter()
    with run.topic() as topic, Consumer(**to) as consumer, Producer(**to, linger_ms=0) as producer:
        consumer.subscribe(topic)
        last = threading.Event()

        def receive() -> None:
            while not last.is_set() or took.count < sent:
                record = consumer.take(500)
                if record is not None and isinstance(record.value, bytes):
                    took.add(time.perf_counter() - _STAMP.unpack_from(record.value)[0] / 1e9)
                elif last.is_set() and time.perf_counter() > over + run.connection.timeout_s:
                    return

        sent, over, filling = 0, 0.0, random.randbytes(run.size - _STAMP.size)  # noqa: S311 - a filling
        taking = threading.Thread(target=receive, daemon=True)
        taking.start()
        began = time.perf_counter()
        for due in _moments(began, seconds, rate):
            producer.publish(topic, _STAMP.pack(round(due * 1e9)) + filling)
            sent += 1
        producer.flush()
        over = time.perf_counter()
        last.set()
        taking.join(run.connection.timeout_s + 1)
        if took.count < sent:
            raise click.ClickException(f"{took.count} of {sent} records came within {run.connection.timeout_s:g} s")
        run.tell("latency", sent, over - began, took, "with the consumer after")


def _delete(admin: Admin, name: str) -> None:
    from mq_client import TritonMQError

    try:
        admin.delete_topic(name)
    except TritonMQError as error:
        say(f"topic {name} could not be deleted ({error}): `tritonmq topic delete {name}`")


def _moments(began: float, seconds: float, rate: int | None) -> Iterator[float]:
    """When each record is due, given at that moment or, if that is over, at once; without a rate always now."""
    number = 0
    while True:
        due = time.perf_counter() if rate is None else began + number / rate
        if due >= began + seconds:
            return
        if rate is not None and (early := due - time.perf_counter()) > 0:
            time.sleep(early)
        yield due
        number += 1
