"""What one hostile request costs a broker, and what an honest client notices while it is repeated without a pause.

The bound is of the wait while nobody attacks. The attacker, the honest client and the broker share the machine's cores,
so the client waits longer beside any busy process. How long it waits beside one that takes as much processor time as
the attacker, and asks nothing, is therefore told too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple

import psutil
import pyarrow as pa

from benchmarks.bench.measure import percentile
from benchmarks.security.asking import opened
from benchmarks.security.ground import Ground, Peak, Row
from mq_client import Admin, Producer, Security
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch, schema_fingerprint
from mq_protocol.errors import TritonMQError
from mq_protocol.limits import REQUEST_PLACES_MAX
from mq_protocol.methods import BROKER, Kind

MIB: Final = 1 << 20
GROWN_BYTES_MAX: Final = 32 * MIB
TIMES_MAX: Final = 3.0
START_S: Final = 60.0
BUSY_PERIOD_S: Final = 0.002
CROWD: Final = 8
"""Connections of an attacker that has many."""

ZEROS: Final = pa.schema([pa.field("s", pa.string())])
DECODED_BYTES: Final = 60 * MIB


def _zeros() -> tuple[bytes, bytes]:
    """A batch of some kilobytes that is large inside: its header, and itself."""
    rows = pa.record_batch([pa.array(["0" * DECODED_BYTES])], schema=ZEROS)
    header = pb.ProduceHeader(
        topic="zeros", uuid=b"u" * 16, record_count=1, schema_fingerprint=schema_fingerprint(ZEROS), correlation=1
    )
    return header.SerializeToString(), bytes(encode_batch(rows, "zstd"))


def attacks() -> dict[str, tuple[str, bytes]]:
    """By name: the method, and one request; of Produce its header."""
    places = [pb.SubscribePartition(topic=f"t{number}", partition=number) for number in range(REQUEST_PLACES_MAX)]
    return {
        "Metadata that names one topic often": (
            "Metadata",
            pb.MetadataRequest(topics=["t"] * 40_000).SerializeToString(),
        ),
        "Subscribe with as many places as may be": (
            "Subscribe",
            pb.SubscribeRequest(open=pb.SubscribeOpen(member_id="m", partitions=places)).SerializeToString(),
        ),
        "Subscribe with 300,000 places": (
            "Subscribe",
            pb.SubscribeRequest(open=pb.SubscribeOpen(member_id="m", partitions=places * 30)).SerializeToString(),
        ),
        "a setting whose name has megabytes": (
            "CreateTopic",
            pb.CreateTopicRequest(name="t", settings={"ab" * 450_000: "1"}).SerializeToString(),
        ),
        "a name that is searched for": ("DeleteTopic", pb.DeleteTopicRequest(name="ab" * 110).SerializeToString()),
        "moves of 500,000 partitions": ("StartMoves", b"\x0a\x00" * 500_000),
        "a batch of kilobytes with 60 MiB inside": ("Produce", _zeros()[0]),
    }


class Attack(NamedTuple):
    """What an attacker has done so far: how often it has asked, and the seconds of processor that it took itself."""

    asked: Callable[[], int]
    spent_s: Callable[[], float]


@contextmanager
def repeated(ground: Ground, method: str, data: bytes, connections: int = 1) -> Iterator[Attack]:
    """The request, asked again as soon as it is answered, on so many connections of a process of its own: an attacker's
    threads do not share an interpreter with the honest client."""
    spawn = multiprocessing.get_context("spawn")
    over, count = spawn.Event(), spawn.Value("Q", 0)
    address, security = ground.cluster.brokers[1].address, ground.cluster.security
    attacker = spawn.Process(
        target=_attack, args=(address, security, method, data, connections, over, count), daemon=True
    )
    attacker.start()
    try:
        _await_first(attacker, count)
        process = psutil.Process(attacker.pid)
        yield Attack(lambda: int(count.value), lambda: sum(process.cpu_times()[:2]))
    finally:
        _ended(attacker, over)


def _ended(process: BaseProcess, over: Any) -> None:
    over.set()
    process.join(60)
    process.kill()
    process.join()


@contextmanager
def busy(share: float) -> Iterator[None]:
    """A process that takes this share of a processor and asks nothing."""
    spawn = multiprocessing.get_context("spawn")
    over, begun = spawn.Event(), spawn.Event()
    process = spawn.Process(target=_burn, args=(min(share, 1.0), over, begun), daemon=True)
    process.start()
    try:
        if not begun.wait(START_S):
            raise RuntimeError("the busy process has not begun: see above why")
        yield
    finally:
        _ended(process, over)


def _burn(share: float, over: Any, begun: Any) -> None:
    begun.set()
    while not over.is_set():
        until = time.perf_counter() + share * BUSY_PERIOD_S
        while time.perf_counter() < until:
            pass
        time.sleep((1 - share) * BUSY_PERIOD_S)


def _await_first(attacker: BaseProcess, count: Any) -> None:
    end = time.monotonic() + START_S
    while not count.value:
        if not attacker.is_alive() or time.monotonic() > end:
            raise RuntimeError("the attacker has asked nothing: see above why its process ended")
        time.sleep(0.01)


def _attack(
    address: str, security: Security | None, method: str, data: bytes, connections: int, over: Any, count: Any
) -> None:
    asking = [
        threading.Thread(target=_ask, args=(address, security, method, data, over, count)) for _ in range(connections)
    ]
    for each in asking:
        each.start()
    for each in asking:
        each.join()


def _ask(address: str, security: Security | None, method: str, data: bytes, over: Any, count: Any) -> None:
    asyncio.run(_ask_on(address, security, method, data, over, count))


async def _ask_on(address: str, security: Security | None, method: str, data: bytes, over: Any, count: Any) -> None:
    parts = _zeros()[1:] if method == "Produce" else ()
    while not over.is_set():
        call = await opened(address, security, method, data, parts)
        try:
            if BROKER.methods[method].kind is not Kind.CONVERSATION:
                call.end()
            async with asyncio.timeout(30):
                await call.read()
        except (TritonMQError, TimeoutError):
            pass
        finally:
            call.close()
        with count.get_lock():
            count.value += 1


def measured(ground: Ground, seconds: float) -> list[Row]:
    bootstrap, security = ground.cluster.bootstrap, ground.cluster.security
    [process] = ground.processes
    peak = Peak(process)
    with Admin(bootstrap, security=security) as admin:
        admin.create_topic("honest", partitions=1, replicas=1, durability="memory")
        admin.create_topic("zeros", partitions=1, replicas=1, durability="memory", schema=ZEROS)
    rows = []
    with Producer(bootstrap, security=security, linger_ms=0) as producer:
        _waits(producer, seconds / 2)
        quiet = percentile(_waits(producer, seconds), 99)
        for name, (method, data) in attacks().items():
            before = peak.forget()  # without the honest client, whose records stay in memory
            with repeated(ground, method, data):
                time.sleep(seconds)
            grown = peak.bytes() - before
            most = GROWN_BYTES_MAX + (DECODED_BYTES if method == "Produce" else 0)  # what its topic allows a batch
            times, told = _beside(ground, producer, seconds, quiet, method, data)
            promised = f"≤ {TIMES_MAX:.0f} times, ≤ {most / MIB:.0f} MiB"
            holds = times <= TIMES_MAX and grown <= most
            rows.append(Row(f"honest p99 under: {name}", f"{told}; {grown / MIB:.0f} MiB", promised, holds))
            _, told = _beside(ground, producer, seconds, quiet, method, data, CROWD)
            rows.append(Row(f"the same on {CROWD} connections at once", told, "nothing", None))
    return rows


def _beside(
    ground: Ground, producer: Producer, seconds: float, quiet: float, method: str, data: bytes, connections: int = 1
) -> tuple[float, str]:
    """How many times as long as when it is quiet an honest client waits beside an attacker, and what is told of it."""
    with repeated(ground, method, data, connections) as attack:
        spent_s, began = attack.spent_s(), time.perf_counter()
        attacked = percentile(_waits(producer, seconds), 99)
        share = (attack.spent_s() - spent_s) / (time.perf_counter() - began)
        asked = attack.asked()
    with busy(share):
        beside = percentile(_waits(producer, seconds), 99)
    times = attacked / quiet
    compared = f"{1e3 * quiet:.1f} ms, {1e3 * beside:.1f} beside a process as busy"
    return times, f"{times:.1f} times ({1e3 * attacked:.1f} against {compared}); asked {asked} times"


def _waits(producer: Producer, seconds: float) -> list[float]:
    """Of one record after another, to its acknowledgement."""
    end, found = time.perf_counter() + seconds, []
    while (begun := time.perf_counter()) < end:
        producer.publish("honest", bytes(300)).result()
        found.append(time.perf_counter() - begun)
    return found
