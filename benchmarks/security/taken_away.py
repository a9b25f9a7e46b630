"""How long a right that was taken away still lasts, at a broker that was not asked: what is open there ends."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.bench.measure import percentile
from benchmarks.security.asking import opened
from benchmarks.security.ground import Ground, Row
from mq_client import AclRule, Admin, Security
from mq_dev.certificates import Authority, authority_key, write_client
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.wire.connection import Connection

TOPIC: Final = "taken"
USER: Final = "User:taken"
WITHIN_S: Final = 2.0
WAIT_S: Final = 30.0


def measured(ground: Ground, tries: int) -> list[Row]:
    assert ground.certs is not None
    write_client(Authority.open(ground.certs, authority_key(ground.certs)), ground.certs, "taken")
    taken, cluster = Security(ground.certs, "taken"), ground.cluster
    took = []
    with Admin(cluster.bootstrap, security=cluster.security) as admin:
        admin.create_topic(TOPIC, partitions=1, replicas=len(cluster.brokers))
    asked = cluster.brokers[1].address
    away = next(broker.address for number, broker in cluster.brokers.items() if number != 1)
    rule = AclRule(USER, "Describe", "Topic", TOPIC)
    with Admin(asked, security=cluster.security) as first:
        for _ in range(tries):
            first.alter_acls(add=[rule])
            took.append(asyncio.run(_ends_after(first, rule, away, taken)))
    p99 = percentile(took, 99)
    told = f"p99 {p99:.2f} s, longest {max(took):.2f} s, of {len(took)} tries"
    return [Row("a right taken away, at another broker", told, f"≤ {WITHIN_S:.0f} s", p99 <= WITHIN_S)]


async def _ends_after(admin: Admin, rule: AclRule, away: str, taken: Security) -> float:
    """Seconds from when the right is taken away until the stream ends that it allowed."""
    watch = await _watching(away, taken)
    ended = asyncio.create_task(_at_its_end(watch))
    begun = time.perf_counter()
    await asyncio.to_thread(admin.alter_acls, remove=[rule])
    return await asyncio.wait_for(ended, WAIT_S) - begun


async def _at_its_end(watch: Connection) -> float:
    try:
        while await watch.read() is not None:
            pass
    except TritonMQError:
        pass
    watch.close()
    return time.perf_counter()


async def _watching(away: str, taken: Security) -> Connection:
    """The stream, once it is allowed."""
    request = pb.WatchOffsetsRequest(partitions=[pb.TopicPartition(topic=TOPIC)]).SerializeToString()
    deadline = time.monotonic() + WAIT_S
    while True:
        watch = await opened(away, taken, "WatchOffsets", request)
        watch.end()
        try:
            await watch.read()
        except TritonMQError:
            watch.close()
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.01)
            continue
        return watch
