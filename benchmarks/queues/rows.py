"""The rows: each makes records, has them worked off, counts every one, and says what it measured.

Every reading has `again`: how many receipts there were beyond the first of each record.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from benchmarks.bench.measure import Readings, Schedule, paced, percentile
from benchmarks.bench.processes import Helper
from benchmarks.queues import members
from benchmarks.queues.ground import HEAR_S, PARTITIONS, RECORD_BYTES, Ground, Where
from benchmarks.queues.tally import Counted, Miscounted, judge, judge_those, values_of
from mq_client import Producer, Queue

BATCH: Final = 5_000
BATCHED: Final = 400_000
ONE_BY_ONE: Final = 60_000
PREFETCH: Final = 1_000
JOBS: Final = 4_000
WORKERS: Final = 50
PER_SECOND: Final = 1_000
PUBLISHED: Final = 5_000
FAILING: Final = 200_000
HELD: Final = 10_000
SCATTERED: Final = 100_000
DEAD: Final = 20_000
OUTPUTS: Final = 100_000
_LEAD_S: Final = 1.0
_IN_SYNC_S: Final = 60.0


def batched(ground: Ground, durability: str = "fsync") -> Readings:
    count = ground.of(BATCHED)
    with ground.queue(count, durability=durability) as where:
        work = ground.run([(members.batches, where, BATCH, "ack")] * 2)
        counted = judge(count, work.received, work.settled, again_max=0)
        ground.check_accepted(where, count)
    return {"records/s": count / work.seconds, **again(counted)}


def one_by_one(ground: Ground, durability: str = "fsync") -> Readings:
    count = ground.of(ONE_BY_ONE)
    with ground.queue(count, durability=durability) as where:
        work = ground.run([(members.one_by_one, where, PREFETCH, False)])
        counted = judge(count, work.received, work.settled, again_max=0)
        ground.check_accepted(where, count)
    return {"records/s": count / work.seconds, **again(counted)}


def jobs(ground: Ground, durability: str = "fsync") -> Readings:
    count = ground.of(JOBS)
    with ground.queue(0, durability=durability) as where:
        fill_in_turn(ground, where[1], count)
        work = ground.run([(members.workers, where, WORKERS // 2)] * 2)
        counted = judge(count, work.received, work.settled, again_max=0)
        ground.check_accepted(where, count)
    return {"jobs/s": count / work.seconds, "p99 ms": percentile(work.latencies_ms, 99), **again(counted)}


def fill_in_turn(ground: Ground, topic: str, count: int) -> None:
    """As many in each partition."""
    with Producer(ground.cluster.bootstrap) as producer:
        for partition in range(PARTITIONS):
            values = values_of(np.arange(partition, count, PARTITIONS, dtype=np.int64), RECORD_BYTES)
            producer.publish_batch(topic, pa.record_batch({"value": values}), partition=partition)


def published(ground: Ground, durability: str = "fsync") -> Readings:
    count = ground.of(PUBLISHED)

    def publish() -> None:
        padding = bytes(RECORD_BYTES - 16)
        with Producer(ground.cluster.bootstrap) as producer:
            schedule = Schedule(time.time_ns() + round(_LEAD_S * 1e9), PER_SECOND, count)
            for ident, due in enumerate(paced(schedule)):
                value = ident.to_bytes(8, "little") + due.to_bytes(8, "little") + padding
                producer.publish(where[1], value)

    with ground.queue(0, durability=durability) as where:
        work = ground.run([(members.one_by_one, where, PREFETCH, True)], publish)
        counted = judge(count, work.received, work.settled, again_max=0)
        ground.check_accepted(where, count)
    latencies = work.latencies_ms
    return {"p50 ms": percentile(latencies, 50), "p99 ms": percentile(latencies, 99), **again(counted)}


def failing(ground: Ground) -> Readings:
    """Poison is delivered three times, and one of ten others twice; what else comes again is an error."""
    count = ground.of(FAILING)
    ids = np.arange(count)
    poison = ids[ids % members.POISON_EVERY == members.POISON_EVERY - 1]
    with ground.queue(count, delivery_limit=3, retry_ms=100, retry_factor=1) as where:
        work = ground.run([(members.batches, where, BATCH, "some fail")] * 2)
        letters = f"{where[1]}.dead"
        ground.until("each poison is a dead letter", lambda: ground.described(where).dead >= len(poison))
        ground.until("each letter is published", lambda: not ground.described(where).outbox)
        dead = ground.ids_in(letters)
        explained = 2 * len(poison) + len(ids[:: members.FAILS_EVERY])
        counted = judge(count, work.received, [*work.settled, dead], again_max=explained)
        judge_those(poison, [dead], [dead], what="dead letters")
        ground.check_accepted(where, count - len(poison))
        ground.admin.delete_topic(letters)
    return {"records/s": count / work.seconds, "again": float(counted.again - explained)}


def leader_killed(ground: Ground) -> Readings:
    """The stall is from the kill until the first outcome is committed."""
    with ground.queue(HELD, partitions=1) as where:
        arguments = (members.holding, where, HELD, 100)
        with Helper(*arguments) as member:
            member.hear(HEAR_S)
            member.say("go")
            _all_held(member.hear(HEAR_S), HELD)
            leader = ground.admin.describe_topic(where[1]).partitions[0].leader
            ground.cluster.kill(leader)
            killed = time.monotonic()
            member.say(HELD)
            first: float = member.hear(HEAR_S)
            told = member.hear(HEAR_S)
        ground.cluster.restart(leader)
        counted = judge(HELD, [told.received], [told.settled], again_max=0)
        ground.check_accepted(where, HELD)
        ground.until("all replicas are in sync", lambda: _in_sync(ground, where), _IN_SYNC_S)
    return {"stall ms": (first - killed) * 1_000, **again(counted)}


def _all_held(held: int, count: int) -> None:
    if held != count:
        raise Miscounted(f"a member holds {held:,} of {count:,} records")


def _in_sync(ground: Ground, where: Where) -> bool:
    return all(
        len(each.isr) == len(ground.cluster.brokers) for each in ground.admin.describe_topic(where[1]).partitions
    )


def stuck(ground: Ground) -> Readings:
    """One record is held from before the others are worked off until after. Memory is the brokers' that grew most."""
    count = ground.of(BATCHED)
    with ground.queue(count, lease_ms=600_000) as where, Queue(*where, in_flight_max=1) as queue:
        record = queue.take(HEAR_S * 1_000)
        if record is None:
            raise Miscounted("no record came")
        ident = int.from_bytes(record.value[:8], "little")
        before = _resident(ground)
        work = ground.run([(members.batches, where, BATCH, "ack")] * 2)
        grew = max(after - before for before, after in zip(before, _resident(ground), strict=True))
        record.ack().result(HEAR_S)
        held = np.array([ident])
        counted = judge(count, [*work.received, held], [*work.settled, held], again_max=0)
        ground.check_accepted(where, count)
    return {"records/s": count / work.seconds, "MB more": grew / 1e6, **again(counted)}


def _resident(ground: Ground) -> list[int]:
    """Bytes, of each broker."""
    found = []
    for broker in ground.cluster.brokers.values():
        status = Path(f"/proc/{broker.pid}/status").read_text()
        found.append(int(status.split("VmRSS:")[1].split()[0]) * 1024)
    return found


def scattered(ground: Ground) -> Readings:
    """Nine of ten, by chance and in random order, are settled, then all brokers are killed and started again. What the
    next member gets must be exactly the others."""
    count = ground.of(SCATTERED)
    settle = count * 9 // 10
    with ground.queue(count, partitions=1) as where:
        with Helper(members.holding, where, count, 1_000) as member:
            member.hear(HEAR_S)
            member.say("go")
            _all_held(member.hear(HEAR_S), count)
            member.say(settle)
            began = time.monotonic()
            member.hear(HEAR_S)
            told = member.hear(HEAR_S)
        runs = sum(each.runs_kept for each in ground.described(where).partitions)
        for broker in ground.cluster.brokers:
            ground.cluster.kill(broker)
        for broker in ground.cluster.brokers:
            ground.cluster.restart(broker, wait=False)
        ground.cluster.wait_until_serving()
        work = ground.run([(members.batches, where, BATCH, "ack")])
        rest = np.setdiff1d(np.arange(count), told.settled)
        judge(count, [told.received], [told.settled, *work.settled], again_max=0)
        counted = judge_those(rest, work.received, work.settled, again_max=0, what="records after the restart")
        ground.check_accepted(where, count)
    return {"settled/s": settle / (told.last - began), "runs kept": float(runs), **again(counted)}


def dead_letters(ground: Ground) -> Readings:
    count = ground.of(DEAD)
    with ground.queue(count) as where:
        done: list[float] = []
        work = ground.run(
            [(members.batches, where, 1_000, "reject")] * 2,
            lambda: done.append(ground.until("all are sent", lambda: _sent(ground, where, count), HEAR_S)),
        )
        letters = ground.ids_in(f"{where[1]}.dead")
        counted = judge(count, work.received, [letters], again_max=0, what="dead letters")
        ground.check_accepted(where, 0)
        ground.admin.delete_topic(f"{where[1]}.dead")
    return {"letters/s": count / (done[0] - work.began), **again(counted)}


def _sent(ground: Ground, where: Where, count: int) -> bool:
    found = ground.described(where)
    return found.dead >= count and not found.outbox


def outputs(ground: Ground) -> Readings:
    count = ground.of(OUTPUTS)
    target = ground.topic()
    with ground.queue(count) as where:
        work = ground.run([(members.with_outputs, where, BATCH, target)] * 2)
        ground.until("all outputs are published", lambda: not ground.described(where).outbox)
        counted = judge(count, work.received, work.settled, again_max=0)
        judge(count, [ground.ids_in(target)], [ground.ids_in(target)], again_max=0, what="outputs")
        ground.check_accepted(where, count)
    ground.admin.delete_topic(target)
    return {"records/s": count / work.seconds, **again(counted)}


def again(counted: Counted) -> dict[str, float]:
    return {"again": float(counted.again)}
