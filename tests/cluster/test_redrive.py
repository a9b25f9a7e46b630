"""Dead letters are sent back by commands that are killed, under leaders that are killed: each letter goes back once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from mq_client import Producer, Queue, Reader
from tests.cluster.harness import Cluster, wait_until

pytestmark = pytest.mark.cluster

QUICK = ("--session-timeout-ms", "2000")
RECORDS = 1_000


def redrive(cluster: Cluster, rate: int) -> subprocess.Popen[bytes]:
    command = ["queue", "redrive", "t.dead", "--rate", str(rate), "--json", "--bootstrap", cluster.bootstrap]
    return subprocess.Popen([sys.executable, "-m", "mq_cli.main", *command], stdout=subprocess.PIPE)


@pytest.mark.long
def test_each_letter_goes_back_once_though_commands_and_leaders_are_killed_meanwhile(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = start_cluster(3, arguments=QUICK)
    make_letters(cluster)

    def back() -> int:
        return sum(end for _, end in cluster.admin.offsets("t").values()) - RECORDS

    commands = [redrive(cluster, 300), redrive(cluster, 300)]
    try:
        wait_until(lambda: back() > RECORDS / 10, "some letters are sent")
        commands[0].kill()
        cluster.kill(cluster.leader("t"))
        wait_until(lambda: back() > RECORDS / 3, "the other command goes on under the next leader")
        commands[1].kill()
        assert back() < RECORDS, "it was killed in the middle"

        def all_settled() -> bool:
            """What the killed ones held is lent again when its lease has run out."""
            commands.append(redrive(cluster, 100_000))
            commands[-1].communicate(timeout=60)
            return cluster.admin.describe_queue("t.dead", "redrive").accepted == RECORDS

        wait_until(all_settled, "the next command sends the rest", 60)
        out, _ = redrive(cluster, 100_000).communicate(timeout=60)
        assert json.loads(out)["sent"] == {}, "nothing is left to send"
    finally:
        for command in commands:
            command.kill()
            command.communicate(timeout=10)
    wait_until(lambda: back() >= RECORDS, "all that was decided is published")
    with Reader(cluster.bootstrap) as reader:
        values = Counter(value for batch in reader.read("t", 0) for value in batch.column("value").to_pylist())
    assert values == {b"%d" % number: 2 for number in range(RECORDS)}


def make_letters(cluster: Cluster) -> None:
    """Every record of topic t, once, as a dead letter in topic t.dead."""
    cluster.admin.create_topic("t", partitions=1, replicas=3, durability="os")
    cluster.admin.declare_queue("t", "g")
    with Producer(cluster.bootstrap) as producer:
        for number in range(RECORDS):
            producer.publish("t", b"%d" % number)
    seen = 0
    with Queue(cluster.bootstrap, "t", "g", idle_ms=15_000) as queue:
        for batch in queue.batches():
            batch.reject(np.ones(len(batch), bool), "not today")
            seen += len(batch)
            if seen == RECORDS:
                break
    wait_until(lambda: cluster.admin.offsets("t.dead") == {0: (0, RECORDS)}, "every letter is there")
    cluster.admin.alter_queue("t", "g", paused=True)
    cluster.admin.declare_queue("t.dead", "redrive", dead_letter="park", delivery_limit=0, lease_ms="1s")
