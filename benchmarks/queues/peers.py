"""Other brokers in the rows that they have too: RabbitMQ's quorum queues and NATS JetStream's work-queue streams.

Servers and clients are fetched as for `make bench-kafka` (benchmarks/peers). Their records have ids as ours, and are
counted the same way. What comes is acknowledged, so an id that came twice was not settled the first time, or was
handed out again; what is left in the queues at the end is an error.
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
from benchmarks.peers.fetch import Fetched, fetch
from benchmarks.peers.servers import PEERS, Peer
from benchmarks.queues import rows
from benchmarks.queues.ground import PARTITIONS, Ground
from benchmarks.queues.tally import accepted_is, judge

_MODULE: Final = "benchmarks.queues.their_members"
PART: Final = 0.1
"""Of the records that we settle: theirs take too long otherwise, above all to be published."""

BESIDE: Final[Mapping[str, str]] = {"NATS JetStream": "os", "RabbitMQ": "fsync"}
"""Which durability of ours is nearest to what an acknowledgement of theirs means."""


class Others:
    """Owns the servers of the other brokers, each started on first use and stopped again when it is not its turn."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._fetched: Fetched = fetch(ground.watch)
        self._opened = ExitStack()
        self._running: dict[str, Peer] = {}
        self._numbers = itertools.count(1)
        self.missing = {who: why for who, why in self._fetched.missing.items() if who in BESIDE}

    def beside(self, row: str) -> Mapping[str, Callable[[], Readings]]:
        """Who is measured in that row."""
        durability = "os" if row.endswith("-os") else "fsync"
        run = _RUNS.get(row.removesuffix("-os"))
        if run is None:
            return {}
        names = [who for who in BESIDE if BESIDE[who] == durability and who in self._fetched.roots]
        return {who: lambda who=who: run(self, who) for who in names}  # type: ignore[misc]

    def servers(self, who: str) -> Peer:
        if who not in self._running:
            self._ground.watch(f"starting {who}")
            directory = self._ground.directory / who.replace(" ", "-")
            self._running[who] = self._opened.enter_context(PEERS[who](self._fetched.roots[who], directory))
        return self._running[who]

    def client(self) -> TheirProcess:
        return TheirProcess(self._fetched.python, self._ground.directory / "their-clients.log", _MODULE)

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
        given: dict[str, Any] = {"peer": who, "addresses": self.servers(who).addresses, "names": self.names()}
        working = {"prefetch": prefetch, "members": members, "stamped": rate > 0}
        with ExitStack() as opened:
            first = opened.enter_context(self.client())
            first.ask("fill", **given, count=0 if rate else count)
            clients = [opened.enter_context(self.client()) for _ in range(processes)]
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
        rate = count / (max(each["last"] for each in told) - began)
        return {"jobs/s" if members > 1 else "records/s": rate, **again}

    def count(self, ours: int) -> int:
        return max(1_000, round(self._ground.of(ours) * PART))

    def close(self) -> None:
        self._opened.close()


def _batched(others: Others, who: str) -> Readings:
    """Neither client has an ack of thousands that could be left over at the end: they acknowledge each."""
    return others.work(who, others.count(rows.BATCHED), 2, prefetch=4 * rows.BATCH)


_RUNS: Final[Mapping[str, Callable[[Others, str], Readings]]] = {
    "batched": _batched,
    "one-by-one": lambda others, who: others.work(who, others.count(rows.ONE_BY_ONE), 1, prefetch=rows.PREFETCH),
    "jobs": lambda others, who: others.work(who, others.count(rows.JOBS), 2, prefetch=1, members=rows.WORKERS // 2),
    "published": lambda others, who: others.work(
        who, others.count(rows.PUBLISHED * 4), 1, prefetch=rows.PREFETCH, rate=rows.PER_SECOND
    ),
}
