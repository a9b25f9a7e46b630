"""Other brokers in the rows that they have too: RabbitMQ's quorum queues, NATS JetStream's work-queue streams, Kafka's
share groups.

Servers and clients are fetched as for `make bench-kafka` (benchmarks/peers, benchmarks/kafka). Their records have ids
as ours, and are counted the same way. What comes is acknowledged, so an id that came twice was not settled the first
time, or was handed out again; what is left in the queues at the end is an error.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from benchmarks.bench.measure import Readings, percentile
from benchmarks.kafka.arena import TheirProcess
from benchmarks.kafka.cluster import KafkaCluster
from benchmarks.kafka.fetch import fetch as fetch_kafka
from benchmarks.peers.fetch import Fetched, fetch
from benchmarks.peers.servers import PEERS
from benchmarks.queues import rows
from benchmarks.queues.ground import PARTITIONS, Ground
from benchmarks.queues.tally import accepted_is, judge

_MODULE: Final = "benchmarks.queues.their_members"
_KAFKA: Final = "Kafka share groups"
_KAFKA_MODULE: Final = "benchmarks.queues.share_members"
PART: Final = 0.1
"""Of the records that we settle: RabbitMQ's and JetStream's take too long otherwise, above all to be published."""

BESIDE: Final[Mapping[str, str]] = {"NATS JetStream": "os", _KAFKA: "os", "RabbitMQ": "fsync"}
"""Which durability of ours is nearest to what an acknowledgement of theirs means."""


class Others:
    """Owns the servers of the other brokers, each started on first use and stopped again when it is not its turn."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._fetched: Fetched = fetch(ground.watch)
        self._kafka = fetch_kafka(ground.watch)
        self._opened = ExitStack()
        self._running: dict[str, list[str]] = {}
        self._numbers = itertools.count(1)
        self.missing = {who: why for who, why in self._fetched.missing.items() if who in BESIDE}

    def beside(self, row: str) -> Mapping[str, Callable[[], Readings]]:
        """Who is measured in that row."""
        durability = "os" if row.endswith("-os") else "fsync"
        run = _RUNS.get(row.removesuffix("-os"))
        if run is None:
            return {}
        there = {_KAFKA, *self._fetched.roots}
        names = [who for who in BESIDE if BESIDE[who] == durability and who in there]
        return {who: lambda who=who: run(self, who) for who in names}  # type: ignore[misc]

    def addresses(self, who: str) -> list[str]:
        """Of its servers, which are started when they are first asked for."""
        if who not in self._running:
            self._ground.watch(f"starting {who}")
            directory = self._ground.directory / who.replace(" ", "-")
            if who == _KAFKA:
                kafka = self._opened.enter_context(KafkaCluster(directory, self._kafka.classpath))
                self._running[who] = kafka.bootstrap.split(",")
            else:
                peer = self._opened.enter_context(PEERS[who](self._fetched.roots[who], directory))
                self._running[who] = peer.addresses
        return self._running[who]

    def client(self, who: str) -> TheirProcess:
        python, module = (self._kafka.python, _KAFKA_MODULE) if who == _KAFKA else (self._fetched.python, _MODULE)
        return TheirProcess(python, self._ground.directory / "their-clients.log", module)

    def names(self) -> list[str]:
        number = next(self._numbers)
        return [f"queue-{number}-{partition}" for partition in range(PARTITIONS)]

    def work(
        self,
        who: str,
        count: int,
        processes: int,
        *,
        prefetch: int,
        members: int = 1,
        rate: float = 0.0,
    ) -> Readings:
        """`rate`: records are published meanwhile, so many a second; 0: all are there before."""
        given: dict[str, Any] = {"peer": who, "addresses": self.addresses(who), "names": self.names()}
        working = {"prefetch": prefetch, "members": members, "stamped": rate > 0}
        with ExitStack() as opened:
            first = opened.enter_context(self.client(who))
            first.ask("fill", **given, count=0 if rate else count)
            clients = [opened.enter_context(self.client(who)) for _ in range(processes)]
            for client in clients:
                client.ask("work", **given, **working)
            began = time.monotonic()
            for client in clients:
                client.say("go")
            if rate:
                first.ask("publish", **given, per_second=rate, count=count)
            told = [client.hear() for client in clients]
            left = first.ask("left", **given)
        ids = [np.array(each["came"], dtype=np.int64) for each in told]
        counted = judge(count, ids, [np.unique(np.concatenate(ids))])
        accepted_is(count, counted.records, left)
        again = {"again": float(counted.again)}
        if rate:
            late = [one for each in told for one in each["late_ms"]]
            return {"p50 ms": percentile(late, 50), "p99 ms": percentile(late, 99), **again}
        began = min((each["first"] for each in told if "first" in each), default=began)
        rate = count / (max(each["last"] for each in told) - began)
        return {"jobs/s" if members > 1 else "records/s": rate, **again}

    def count(self, who: str, ours: int) -> int:
        return max(1_000, round(self._ground.of(ours) * (1.0 if who == _KAFKA else PART)))

    def close(self) -> None:
        self._opened.close()


def _batched(others: Others, who: str) -> Readings:
    """The clients of RabbitMQ and JetStream have no ack of thousands that could be left over at the end: they
    acknowledge each. Kafka's accepts what it polled together."""
    return others.work(who, others.count(who, rows.BATCHED), 2, prefetch=4 * rows.BATCH)


_RUNS: Final[Mapping[str, Callable[[Others, str], Readings]]] = {
    "batched": _batched,
    "one-by-one": lambda others, who: others.work(who, others.count(who, rows.ONE_BY_ONE), 1, prefetch=rows.PREFETCH),
    "jobs": lambda others, who: others.work(
        who, others.count(who, rows.JOBS), 2, prefetch=1, members=rows.WORKERS // 2
    ),
    "published": lambda others, who: others.work(
        who,
        others.count(who, rows.PUBLISHED * (1 if who == _KAFKA else 4)),
        1,
        prefetch=rows.PREFETCH,
        rate=rows.PER_SECOND,
    ),
}
