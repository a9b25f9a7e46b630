"""Other brokers in the produce and latency rows: NATS JetStream, RabbitMQ's quorum queues, Redis Streams, each three
nodes.

Each with the asyncio client that a Python user would take, beside our `Producer.publish` and `Consumer`; six streams,
queues or keys where we have six partitions. What an acknowledgement means differs, so each is put beside our durability
that is nearest:

- JetStream, R3, files: a majority has it in its page cache, synced every two minutes as it ships. Beside `os`, where
  all in sync have it there.
- RabbitMQ, quorum queue of three: a majority has written and synced it. Beside `fsync`, where all in sync have.
- Redis, two replicas and WAIT 2: all three have it in memory; their append-only files are synced every second. Beside
  `os`. Nobody takes over by itself when the primary dies: that would be Sentinel's, whose choice need not have what was
  acknowledged.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from benchmarks.bench.latency import RECORD_BYTES
from benchmarks.bench.measure import Contestant, Readings
from benchmarks.bench.produce import SIZES
from benchmarks.bench.workbench import PARTITIONS
from benchmarks.kafka.arena import Arena, TheirProcess
from benchmarks.kafka.compare import Compared, Comparison
from benchmarks.kafka.latency import WARMING, latency_of_ours, percentiles
from benchmarks.kafka.produce import BYTES, publish
from benchmarks.peers.fetch import fetch
from benchmarks.peers.servers import PEERS, Peer, PeerFailed

RATE: Final = 1_000
_DURABILITY: Final = {"NATS JetStream": "os", "RabbitMQ": "fsync", "Redis": "os"}
_CLIENT: Final = {"NATS JetStream": "nats-py", "RabbitMQ": "aio-pika", "Redis": "redis-py"}
_PART: Final = {"NATS JetStream": 0.05, "RabbitMQ": 0.02, "Redis": 0.1}
"""Of the records that we send: theirs are so much slower that as many would take the most of the run."""

_WARMING: Final = 1_000
_MODULE: Final = "benchmarks.peers.client"


@dataclass(slots=True)
class _Side:
    """One other broker, running, and the processes that speak to it."""

    arena: Arena
    peer: str
    servers: Peer
    python: Any
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def client(self) -> TheirProcess:
        return TheirProcess(self.python, self.arena.directory / "peer-clients.log", _MODULE)

    def names(self) -> list[str]:
        number = next(self.numbers)
        return [f"bench-{number}-{partition}" for partition in range(PARTITIONS)]

    def asked(self, **given: Any) -> dict[str, Any]:
        return {"peer": self.peer, "addresses": self.servers.addresses, **given}

    def produce(self, label: str, size: int) -> Readings:
        count = max(1, round(self.arena.scale.of(BYTES[label] // size) * _PART[self.peer]))
        names = self.names()
        with self.client() as client:
            client.ask("make", **self.asked(names=names))
            seconds = client.ask("produce", **self.asked(names=names, size=size, count=count, warming=_WARMING))
            client.ask("drop", **self.asked(names=names))
        return {"records/s": count / seconds}

    def latency(self) -> Readings:
        names, count = self.names(), round(RATE * self.arena.scale.seconds)
        with ExitStack() as opened:
            giving, taking = opened.enter_context(self.client()), opened.enter_context(self.client())
            giving.ask("make", **self.asked(names=names))
            taking.ask("consume", **self.asked(names=names, warming=WARMING, expected=count))
            load = {"per_second": RATE, "count": count, "size": RECORD_BYTES, "warming": WARMING}
            giving.ask("push", **self.asked(names=names, **load))
            taking.hear()
            giving.say("go")
            giving.hear()
            latencies: list[float] = taking.hear()
            giving.ask("drop", **self.asked(names=names))
        return percentiles(latencies)


def measure(arena: Arena) -> list[Compared]:
    fetched = fetch(arena.watch)
    versions = fetched.versions()
    compared: list[Compared] = []
    for peer, root in fetched.roots.items():
        arena.watch(f"starting {peer}, three nodes")
        try:
            with PEERS[peer](root, arena.scratch()) as servers:
                name = f"{peer} {versions[peer].split('-')[0]}"
                compared += _measure(_Side(arena, peer, servers, fetched.python), name)
        except (PeerFailed, subprocess.SubprocessError) as error:
            arena.watch(f"{peer} does not run here, and is left out: {error}")
    return compared


def _measure(side: _Side, name: str) -> list[Compared]:
    arena, durability = side.arena, _DURABILITY[side.peer]
    theirs = f"{name}, {_CLIENT[side.peer]}"
    compared: list[Compared] = []
    for label, size in reversed(SIZES.items()):
        contestants = [
            Contestant("publish", partial(publish, arena, label, size, durability)),
            Contestant(theirs, partial(side.produce, label, size)),
        ]
        group = f"other brokers: produce, {label}, {durability} / {name}"
        compared += arena.compare(
            contestants, [Comparison(group, "publish", theirs, "records/s", "records/s", "higher")]
        )
    contestants = [
        Contestant("Consumer", partial(latency_of_ours, arena, durability, RATE, None)),
        Contestant(theirs, side.latency),
    ]
    group = f"other brokers: push latency, {RATE:,} records/s, {durability} / {name}"
    asked = [Comparison(group, "Consumer", theirs, metric, "ms", "lower") for metric in ("p50", "p99")]
    return compared + arena.compare(contestants, asked)
