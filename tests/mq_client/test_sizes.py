"""Records of all sizes, from nothing to more than a megabyte."""

from __future__ import annotations

import os

from mq_client import Admin, Producer
from mq_client.reader import Reader


def test_records_of_all_sizes_are_written_in_order(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=1, batch_bytes_max=3 << 20, record_bytes_max=2 << 20)
    values = [os.urandom(size) for size in (0, 1, 100, 40_000, 1 << 20, 5, 2 << 20)]
    with Producer(bootstrap, linger_ms=0) as producer:
        outcomes = [producer.publish(topic, value) for value in values]
        assert [outcome.result().offset for outcome in outcomes] == list(range(len(values)))
    with Reader(bootstrap) as reader:
        found = [value for rows in reader.read(topic, 0) for value in rows.column("value").to_pylist()]
    assert found == values
