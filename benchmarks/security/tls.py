"""TLS beside plain text: large messages, small ones, unary calls, new connections, and many clients that come back."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Final

from benchmarks.bench.measure import percentile
from benchmarks.security.asking import opened as call_opened
from benchmarks.security.ground import PLAIN, TLS, Ground, Row, Spent
from mq_client import Admin, Producer, Reader
from mq_client.cluster import lines
from mq_client.cluster.client import Client
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError

MIB: Final = 1 << 20
PARTITIONS: Final = 6
HOPS: Final = 3
"""Between processes: a batch goes to its leader, and from there to two followers."""

SMALL_BYTES: Final = 300
BACK_S_MAX: Final = 10.0
ASK_S: Final = 10.0


def large(grounds: list[Ground], mebibytes: int, rounds: int) -> list[Row]:
    """Batches of one record of a mebibyte, three replicas."""
    found: dict[tuple[str, str], list[Spent]] = {}
    for number in range(rounds):
        for ground in grounds:
            for durability in ("fsync", "memory"):
                topic = f"large-{durability}-{number}"
                found.setdefault((durability, ground.mode), []).append(_produce(ground, topic, durability, mebibytes))
            found.setdefault(("fetch", ground.mode), []).append(_fetch(ground, f"large-memory-{number}"))
    rows = []
    for what, name, least in (
        ("fsync", "produce with fsync, 3 replicas, 1 MiB", 0.85),
        ("memory", "produce to memory, 3 replicas, 1 MiB", 0.65),
        ("fetch", "fetch from memory, 1 MiB", 0.65),
    ):
        plain, secure = (found[what, mode] for mode in (PLAIN, TLS))
        share = median(one.wall / other.wall for one, other in zip(plain, secure, strict=True))
        speeds = " against ".join(f"{mebibytes / median(each.wall for each in side):.0f}" for side in (secure, plain))
        rows.append(Row(name, f"{share:.0%} of plain ({speeds} MiB/s)", f"≥ {least:.0%}", share >= least))
        hops = 1 if what == "fetch" else HOPS
        more_ms = 1e3 * median(
            (other.processor - one.processor) / mebibytes / hops for one, other in zip(plain, secure, strict=True)
        )
        rows.append(Row(f"{name}: processor time", f"{more_ms:+.2f} ms a MiB and hop", "≤ +1.0 ms", more_ms <= 1.0))
    return [*rows, _at_half_speed(grounds, mebibytes, mebibytes / median(each.wall for each in found["fsync", PLAIN]))]


def _at_half_speed(grounds: list[Ground], mebibytes: int, plain_mib_s: float) -> Row:
    """What is offered leaves the processors room, as they have it where each broker has a machine of its own."""
    pace = plain_mib_s / 2
    speeds = {
        ground.mode: mebibytes / _produce(ground, "large-half", "fsync", mebibytes, mib_s=pace).wall
        for ground in grounds
    }
    share = speeds[TLS] / speeds[PLAIN]
    told = f"{share:.0%} of plain ({speeds[TLS]:.0f} against {speeds[PLAIN]:.0f} MiB/s)"
    return Row("produce with fsync, offered half of plain's speed", told, "≥ 85%", share >= 0.85)


def _produce(ground: Ground, topic: str, durability: str, mebibytes: int, mib_s: float | None = None) -> Spent:
    """`mib_s`: how much is offered a second; None: as much as is taken."""
    security, bootstrap = ground.cluster.security, ground.cluster.bootstrap
    with Admin(bootstrap, security=security) as admin:
        admin.create_topic(
            topic, partitions=PARTITIONS, replicas=3, durability=durability, batch_bytes_max=str(4 * MIB)
        )
    value = bytes(MIB - 200)
    with Producer(bootstrap, security=security, linger_ms=0, compression=None) as producer:
        producer.publish(topic, value).result()
        with ground.spent() as spent:
            began, futures = time.perf_counter(), []
            for number in range(mebibytes):
                if mib_s is not None:
                    time.sleep(max(0.0, began + number / mib_s - time.perf_counter()))
                futures.append(producer.publish(topic, value, partition=number % PARTITIONS))
            for future in futures:
                future.result()
    return spent


def _fetch(ground: Ground, topic: str) -> Spent:
    with (
        Reader(ground.cluster.bootstrap, security=ground.cluster.security) as reader,
        Admin(ground.cluster.bootstrap, security=ground.cluster.security) as admin,
    ):
        ends = {partition: end for partition, (_, end) in admin.offsets(topic).items()}
        with ground.spent() as spent:
            for partition, end in ends.items():
                for _ in reader.read(topic, partition, 0, end):
                    pass
    return spent


def small(grounds: list[Ground], count: int, rounds: int) -> list[Row]:
    """One record at a time, and one unary call at a time."""
    waits: dict[str, list[float]] = {PLAIN: [], TLS: []}
    unary: dict[str, list[float]] = {PLAIN: [], TLS: []}
    opened: dict[str, list[float]] = {PLAIN: [], TLS: []}
    for number in range(rounds):
        for ground in grounds:
            topic = f"small-{number}"
            security, bootstrap = ground.cluster.security, ground.cluster.bootstrap
            with Admin(bootstrap, security=security) as admin:
                admin.create_topic(topic, partitions=1, replicas=3, durability="memory")
            with Producer(bootstrap, security=security, linger_ms=0) as producer:
                for _ in range(count // 10):
                    producer.publish(topic, bytes(SMALL_BYTES)).result()
                for _ in range(count):
                    begun = time.perf_counter()
                    producer.publish(topic, bytes(SMALL_BYTES)).result()
                    waits[ground.mode].append(1e3 * (time.perf_counter() - begun))
            unary[ground.mode].append(_unary_us(ground, count))
            opened[ground.mode].append(_opened_ms(ground, max(20, count // 10)))
    rows = []
    for percent, most in ((50, 0.15), (99, 0.25)):
        plain, secure = (percentile(waits[mode], percent) for mode in (PLAIN, TLS))
        told = f"{secure / plain - 1:+.0%} ({secure:.2f} against {plain:.2f} ms)"
        rows.append(Row(f"produce to acknowledgement, p{percent}", told, f"≤ +{most:.0%}", secure / plain - 1 <= most))
    more_us = median(one - other for one, other in zip(unary[TLS], unary[PLAIN], strict=True))
    rows.append(Row("a unary round trip: processor time", f"{more_us:+.0f} µs", "≤ +110 µs", more_us <= 110))
    each_ms = median(opened[TLS])
    told = f"{each_ms:.1f} ms ({median(opened[PLAIN]):.1f} in plain text)"
    rows.append(Row("a new connection: processor time of both ends", told, "≤ 5 ms", each_ms <= 5.0))
    return rows


def _asked(ground: Ground) -> None:
    address, request = ground.cluster.brokers[1].address, pb.MetadataRequest(topics=["absent"])
    lines.call_unary(
        address, "Metadata", request, pb.MetadataResponse, ASK_S, Client((address,), ground.cluster.security)
    )


def _unary_us(ground: Ground, count: int) -> float:
    _asked(ground)
    with ground.spent(1) as spent:
        for _ in range(count):
            _asked(ground)
    return 1e6 * spent.processor / count


def _opened_ms(ground: Ground, count: int) -> float:
    """Less what the call on it takes."""
    with ground.spent(1) as spent:
        for _ in range(count):
            lines.kept.close()
            _asked(ground)
    return 1e3 * spent.processor / count - _unary_us(ground, 50) / 1e3


def clients_back(ground: Ground, clients: int) -> list[Row]:
    """How long after its restart a broker has answered each of so many clients, which all connect at once."""
    address, security = ground.cluster.brokers[1].address, ground.cluster.security
    request = pb.MetadataRequest(topics=["absent"]).SerializeToString()

    async def ask() -> None:
        while True:
            try:
                call = await call_opened(address, security, "Metadata", request)
            except TritonMQError:
                await asyncio.sleep(0.05)
                continue
            call.end()
            await call.read()
            call.close()
            return

    async def all_ask() -> float:
        begun = time.perf_counter()
        async with asyncio.timeout(120):
            await asyncio.gather(*(ask() for _ in range(clients)))
        return time.perf_counter() - begun

    ground.cluster.kill(1)
    ground.cluster.restart(1)
    took = asyncio.run(all_ask())
    told = f"{took:.1f} s, both ends on this machine"
    return [Row(f"{clients} clients back after a restart", told, f"≤ {BACK_S_MAX:.0f} s", took <= BACK_S_MAX)]
