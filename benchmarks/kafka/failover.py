"""How long nothing can be produced after kill -9 of a partition's leader: the longest time between two
acknowledgements.

A topic of one partition, 3 replicas, a record every 10 ms without lingering, as both ship: a dead broker is noticed
once its session of 4 s has passed, in Kafka of 9 s, and that is most of it. It is started again after each, and waited
for until in sync.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from typing import Final

from benchmarks.bench.measure import Contestant, Readings, Schedule, paced
from benchmarks.bench.workbench import REPLICAS
from benchmarks.kafka.arena import Arena
from benchmarks.kafka.compare import Compared, Comparison
from mq_client import Producer

GROUP: Final = "failover after kill -9 of the leader, as both ship"
PER_SECOND: Final = 100
SECONDS: Final = 24.0
_IN_SYNC_S: Final = 90.0
_POLL_S: Final = 0.1
_TIMEOUT_MS: Final = 60_000
_OURS: Final = "without a successful produce"
_THEIRS: Final = "confluent-kafka"


def measure(arena: Arena) -> list[Compared]:
    """No warming round: what dies is never warm."""
    arena.start_both()
    contestants = [Contestant(_OURS, partial(_ours, arena)), Contestant(_THEIRS, partial(_theirs, arena))]
    return arena.compare(contestants, [Comparison(GROUP, _OURS, _THEIRS, "ms", "ms", "lower")], warm_ups=0)


def _ours(arena: Arena) -> Readings:
    topic = arena.our_topic("os", partitions=1)
    done: list[float] = []
    with Producer(arena.cluster.bootstrap, linger_ms=0, timeout_ms=_TIMEOUT_MS) as producer:
        for at, _due in enumerate(paced(Schedule(time.time_ns(), PER_SECOND, round(PER_SECOND * SECONDS)))):
            future = producer.publish(topic, b"x")
            future.add_done_callback(
                lambda future: done.append(time.monotonic()) if future.exception() is None else None
            )
            if at == PER_SECOND:
                leader = arena.cluster.brokers[arena.admin.describe_topic(topic).partitions[0].leader]
                leader.kill()
        producer.flush()
    leader.start()
    arena.cluster.wait_until_serving([leader.id])
    deadline = time.monotonic() + _IN_SYNC_S
    while len(arena.admin.describe_topic(topic).partitions[0].isr) < REPLICAS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"broker {leader.id} is not in sync {_IN_SYNC_S:g} s after it was started again")
        time.sleep(_POLL_S)
    arena.admin.delete_topic(topic)
    return {"ms": _longest_ms(done)}


def _longest_ms(done: list[float]) -> float:
    return max(after - before for before, after in pairwise(sorted(done))) * 1_000


def _theirs(arena: Arena) -> Readings:
    topic = arena.their_topic("os", partitions=1)
    bootstrap = arena.kafka.bootstrap
    leader = arena.kafka.brokers[arena.client.ask("leader", bootstrap=bootstrap, name=topic)]
    given = {"topic": topic, "per_second": PER_SECOND, "count": round(PER_SECOND * SECONDS)}
    arena.client.ask("outage", bootstrap=bootstrap, **given)
    leader.kill()
    longest: float = arena.client.hear()
    leader.start()
    arena.kafka.wait_until_serving()
    arena.client.ask("wait_in_sync", bootstrap=bootstrap, name=topic, replicas=REPLICAS)
    arena.drop_theirs(topic)
    return {"ms": longest}
