"""Kafka's side, run by the Python that has its clients: topics, produce, push latency, fan-out, failover. Nothing of
ours in it.

`python -m benchmarks.kafka.client` takes one JSON object a line, `{"do": function, ...}`, and answers with what that
function yields, one JSON value a line. A function of several answers goes on between them; `TheirProcess` in arena.py
is the other end. Imports, but for the two clients, only what is pure in `benchmarks.bench`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition  # type: ignore[import-not-found]  # lives elsewhere, see above
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[import-not-found]

from benchmarks.bench.measure import Schedule, Stopwatch, paced

ASK_TIMEOUT_S: Final = 150.0
LED_TIMEOUT_S: Final = 900.0
LED_POLL_S: Final = 0.5
ASKED_FIRST: Final = 100
TOPICS_AT_ONCE: Final = 500
STAMP_BYTES: Final = 8
LEAD_S: Final = 0.05
DIFFERENT: Final = 1_000
_POLL_EVERY: Final = 1_000
_MS: Final = 1e6


# ---------------------------------------------------------------- topics


def create_topics(
    bootstrap: str, names: list[str], partitions: int, replicas: int, config: dict[str, str]
) -> Iterator[None]:
    """Answers once every broker names a leader for each partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for at in range(0, len(names), TOPICS_AT_ONCE):
        wanted = [NewTopic(name, partitions, replicas, config=config) for name in names[at : at + TOPICS_AT_ONCE]]
        for made in admin.create_topics(wanted).values():
            made.result(ASK_TIMEOUT_S)
    yield from wait_led(bootstrap, names, partitions)


def wait_led(bootstrap: str, names: list[str], partitions: int) -> Iterator[None]:
    """Some of them are asked for until they are led, and only then all, as growth.py asks ours."""
    some = random.sample(names, min(ASKED_FIRST, len(names)))
    for address in bootstrap.split(","):
        admin = AdminClient({"bootstrap.servers": address})
        for name in some:
            _wait(partial(_all_led, admin, [name], partitions), f"leaders of {name}", LED_TIMEOUT_S, LED_POLL_S)
        _wait(partial(_all_led, admin, names, partitions), f"leaders of {len(names)} topics", LED_TIMEOUT_S, LED_POLL_S)
    yield None


def _all_led(admin: Any, names: list[str], partitions: int) -> bool:
    topics = admin.list_topics(names[0] if len(names) == 1 else None, timeout=ASK_TIMEOUT_S).topics
    found = [topics[name] for name in names if name in topics]
    return sum(partition.leader > 0 for topic in found for partition in topic.partitions.values()) == partitions * len(
        names
    )


def delete_topic(bootstrap: str, name: str) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept until it has answered: gone, it answers no more
    admin.delete_topics([name])[name].result(ASK_TIMEOUT_S)
    yield None


def leader(bootstrap: str, name: str) -> Iterator[int]:
    yield _leaders(bootstrap, name)[0]


def wait_in_sync(bootstrap: str, name: str, replicas: int) -> Iterator[None]:
    def complete() -> bool:
        found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=ASK_TIMEOUT_S).topics[name]
        return all(len(partition.isrs) == replicas for partition in found.partitions.values())

    _wait(complete, f"replicas of {name}")
    yield None


def _leaders(address: str, name: str) -> dict[int, int]:
    found = AdminClient({"bootstrap.servers": address}).list_topics(timeout=ASK_TIMEOUT_S).topics.get(name)
    if found is None or found.error:
        return {}
    return {number: partition.leader for number, partition in found.partitions.items() if partition.leader > 0}


def _wait(true: Callable[[], bool], what: str, timeout_s: float = ASK_TIMEOUT_S, poll_s: float = 0.05) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still waiting for {what} after {timeout_s:g} s")
        time.sleep(poll_s)


# ---------------------------------------------------------------- records in


def produce(
    bootstrap: str, topic: str, size: int, count: int, warming: int, settings: dict[str, Any]
) -> Iterator[float]:
    """Seconds for `count` records through confluent-kafka's `produce`, to the last acknowledgement."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **settings, "error_cb": failed.append})
    values = _values(size)
    _produce(producer, topic, values, warming)
    with Stopwatch() as watch:
        _produce(producer, topic, values, count)
    yield watch.seconds


def _produce(producer: Any, topic: str, values: list[bytes], count: int, partitions: int = 0) -> None:
    different = len(values)
    for at in range(count):
        where = {"partition": at // _POLL_EVERY % partitions} if partitions else {}
        while True:
            try:
                producer.produce(topic, values[at % different], **where)
                break
            except BufferError:  # its queue is full: let it work
                producer.poll(0.01)
        if not at % _POLL_EVERY:
            producer.poll(0)
    left = producer.flush(ASK_TIMEOUT_S)
    if left:
        raise TimeoutError(f"{left} of {count} records were not acknowledged")


def produce_kafka_python(
    bootstrap: str, topic: str, size: int, count: int, warming: int, settings: dict[str, Any]
) -> Iterator[float]:
    """The same through kafka-python's `send`."""
    from kafka import KafkaProducer  # type: ignore[import-not-found]

    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all", **settings)
    values = _values(size)

    def send(records: int) -> None:
        for at in range(records):
            producer.send(topic, values[at % DIFFERENT])
        producer.flush(ASK_TIMEOUT_S)

    send(warming)
    with Stopwatch() as watch:
        send(count)
    producer.close()
    yield watch.seconds


def fill(bootstrap: str, topic: str, partitions: int, rows: int, values: str | int) -> Iterator[int]:
    """`rows` records, evenly spread: of so many random bytes, or the lines of a file in turn."""
    different = _values(values) if isinstance(values, int) else Path(values).read_bytes().splitlines()
    settings = {"linger.ms": 50, "batch.size": 1_000_000, "queue.buffering.max.messages": 500_000}
    _produce(Producer({"bootstrap.servers": bootstrap, "acks": "all", **settings}), topic, different, rows, partitions)
    yield rows


def _values(size: int) -> list[bytes]:
    return [os.urandom(size) for _ in range(DIFFERENT)]


# ---------------------------------------------------------------- pushed out


def push(
    bootstrap: str,
    topic: str,
    per_second: float,
    count: int,
    size: int,
    warming: int,
    partitions: int,
    settings: dict[str, Any],
) -> Iterator[str]:
    """Warm up, say so, and after another line on standard input send records that carry when they were due."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **settings})
    for number in range(warming):
        producer.produce(topic, bytes(size), partition=number % partitions)
    producer.flush(ASK_TIMEOUT_S)
    yield "warm"
    sys.stdin.readline()  # whoever asked says when the consumer is warm too
    padding = bytes(size - STAMP_BYTES)
    for at, due in enumerate(paced(Schedule(time.time_ns() + round(LEAD_S * 1e9), per_second, count))):
        producer.produce(topic, due.to_bytes(STAMP_BYTES, "little") + padding)
        if not at % 100:
            producer.poll(0)
    producer.flush(ASK_TIMEOUT_S)
    yield "sent"


def consume(
    bootstrap: str, topic: str, partitions: int, warming: int, expected: int, settings: dict[str, Any]
) -> Iterator[str | list[float]]:
    """Say that it is there, take `warming` records and say so, then `expected` and say how late each was, in
    milliseconds."""
    consumer = _assigned(bootstrap, topic, partitions, settings)
    yield "there"
    _take(consumer, warming)
    yield "warm"
    yield _take(consumer, expected)
    consumer.close()


def fan_out(
    bootstrap: str, topic: str, partitions: int, consumers: int, warming: int, expected: int, settings: dict[str, Any]
) -> Iterator[str | list[float]]:
    """`consume` by many consumers at once, a thread each."""
    found: list[list[float]] = [[] for _ in range(consumers)]
    warm = threading.Barrier(consumers + 1)
    there = threading.Barrier(consumers + 1)

    def run(number: int) -> None:
        consumer = _assigned(bootstrap, topic, partitions, settings)
        there.wait(ASK_TIMEOUT_S)
        _take(consumer, warming)
        warm.wait(ASK_TIMEOUT_S)
        found[number] = _take(consumer, expected)
        consumer.close()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(consumers)]
    for thread in threads:
        thread.start()
    there.wait(ASK_TIMEOUT_S)
    yield "there"
    warm.wait(ASK_TIMEOUT_S)
    yield "warm"
    for thread in threads:
        thread.join(ASK_TIMEOUT_S)
    yield [latency for each in found for latency in each]


def _assigned(bootstrap: str, topic: str, partitions: int, settings: dict[str, Any]) -> Any:
    """A consumer of every partition from its start; no group is joined."""
    given = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, **settings}
    consumer = Consumer(given)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    return consumer


def _take(consumer: Any, count: int) -> list[float]:
    latencies: list[float] = []
    deadline = time.monotonic() + ASK_TIMEOUT_S
    while len(latencies) < count:
        message = consumer.poll(1.0)
        if message is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(latencies)} of {count} records came")
            continue
        if message.error():
            raise RuntimeError(str(message.error()))
        latencies.append((time.time_ns() - int.from_bytes(message.value()[:STAMP_BYTES], "little")) / _MS)
    return latencies


# ---------------------------------------------------------------- while a leader dies


def outage(bootstrap: str, topic: str, per_second: float, count: int) -> Iterator[str | float]:
    """Say when it is under way, send records at that rate, and say the longest time without one acknowledged, in
    milliseconds."""
    done: list[float] = []

    def acknowledged(error: object, _message: object) -> None:
        if error is None:
            done.append(time.monotonic())

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    schedule = Schedule(time.time_ns(), per_second, count)
    for at, _due in enumerate(paced(schedule)):
        producer.produce(topic, b"x", on_delivery=acknowledged)
        producer.poll(0)
        if at == round(per_second):
            yield "under way"
    producer.flush(ASK_TIMEOUT_S)
    yield max(after - before for before, after in itertools.pairwise(done)) * 1_000


def main() -> None:
    """Until standard input ends."""
    topics = (create_topics, wait_led, delete_topic, leader, wait_in_sync)
    records = (produce, produce_kafka_python, fill, push, consume, fan_out, outage)
    known: dict[str, Callable[..., Iterator[Any]]] = {function.__name__: function for function in (*topics, *records)}
    while line := sys.stdin.readline():
        asked = json.loads(line)
        answers = known[asked.pop("do")](**asked)
        for answer in answers:
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
