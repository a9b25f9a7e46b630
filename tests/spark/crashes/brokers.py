"""The brokers that the cases hurt: a cluster of failing_broker.py's."""

from __future__ import annotations

import contextlib
from pathlib import Path

from mq_client.transactions import TransactionClient
from mq_protocol.names import TRANSACTIONS_TOPIC
from mq_protocol.partitioner import coordinator_partition
from tests.cluster.harness import Cluster, wait_until

PUBLISHED_S = 180.0
QUICK = ("--session-timeout-ms", "2000")


class FailingBrokers(Cluster):
    """Owns what `Cluster` owns; its brokers stop at the points that are armed in the directory of
    `TRITONMQ_FAILPOINTS`."""

    def __init__(self, directory: Path, brokers: int = 3) -> None:
        super().__init__(directory, brokers, arguments=QUICK)
        for broker in self.brokers.values():
            broker.module = "tests.spark.crashes.failing_broker"
        self.replicas = min(brokers, 3)

    def coordinator(self, key: tuple[str, str]) -> int:
        """The broker that decides for the key."""
        partitions = len(self.admin.describe_topic(TRANSACTIONS_TOPIC).partitions)
        return self.leader(TRANSACTIONS_TOPIC, coordinator_partition(*key, partitions))

    def until_published(self, key: tuple[str, str], more_than: int) -> tuple[int, int]:
        """Wait until a micro-batch above that one is decided and published: its number and how many rows it has."""

        def published() -> tuple[int, int] | None:
            with contextlib.closing(TransactionClient(self.bootstrap, 5_000)) as client:
                status = client.transaction_status(key)
            if status is None or status.batch_id <= more_than or not status.published:
                return None
            return status.batch_id, status.row_count

        found: tuple[int, int] = wait_until(published, f"a micro-batch after {more_than} is published", PUBLISHED_S)
        return found

    def until_whole(self, topics: list[str]) -> None:
        """Every broker runs, every partition is led, every replica in sync: the next may be killed."""
        for broker in self.brokers.values():
            broker.start()
        self.wait_until_serving()
        for topic in (*topics, TRANSACTIONS_TOPIC):
            self.wait_for_isr(topic, self.replicas, 60)
            self.wait_for_leaders(topic)
