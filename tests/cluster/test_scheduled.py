"""Scheduled records outlive the broker that they were given to."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable

import pytest

from mq_client import Producer, Reader
from tests.cluster.harness import Cluster, wait_until

pytestmark = pytest.mark.cluster

QUICK = ("--session-timeout-ms", "2000")
RECORDS, DELAY_S = 300, 6.0


def scheduled_in_time(cluster: Cluster, producer: Producer) -> tuple[list[uuid.UUID], int]:
    """All records are acknowledged, and one is cancelled, before they are due. Beside load the first delay may be over
    by then: that topic is made anew, and they are given more time."""
    for delay_s in (DELAY_S, 4 * DELAY_S, 16 * DELAY_S):
        due_us = round((time.time() + delay_s) * 1e6)
        names = [uuid.uuid4() for _ in range(RECORDS)]
        sent = [
            producer.publish("t", b"%d" % number, deliver_at=due_us, uuid=name) for number, name in enumerate(names)
        ]
        places = {future.result(30).offset for future in sent}
        cancelled, waiting = producer.cancel("t", 0, names[7]), cluster.admin.scheduled("t")
        if time.time() * 1e6 < due_us:
            assert places == {-1}
            assert cancelled == (True, False, -1)
            assert waiting == {0: (RECORDS - 1, due_us)}
            return names, due_us
        cluster.admin.delete_topic("t")
        cluster.admin.create_topic("t", partitions=1, replicas=3)
    raise AssertionError(f"{RECORDS} records are not scheduled within {16 * DELAY_S} s")


def test_scheduled_records_are_published_once_and_not_early_by_the_next_leader(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = start_cluster(3, arguments=QUICK)
    cluster.admin.create_topic("t", partitions=1, replicas=3)
    with Producer(cluster.bootstrap) as producer:
        names, due_us = scheduled_in_time(cluster, producer)
        cluster.kill(cluster.leader("t"))
        again = [producer.publish("t", b"again", deliver_at=due_us, uuid=name) for name in names[:20]]
        for future in again:
            future.result(30)

    def published() -> int:
        return sum(end for _, end in cluster.admin.offsets("t").values())

    early = published()
    if time.time() * 1e6 < due_us:
        assert early == 0
    wait_until(lambda: published() >= RECORDS - 1, "all are published", due_us / 1e6 - time.time() + 40)
    rows = [row for batch in Reader(cluster.bootstrap).read("t", 0) for row in batch.to_pylist()]
    expected = Counter(b"%d" % number for number in range(RECORDS) if number != 7)
    assert Counter(row["value"] for row in rows) == expected
    assert time.time() * 1e6 >= due_us
    assert cluster.admin.scheduled("t") == {}
