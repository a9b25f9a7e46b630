"""A query goes on under another user's name, with certificates and rights, while brokers are killed."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from mq_client import (
    AclRule,
    Admin,
    GivenTransaction,
    PermissionDenied,
    Reader,
    Security,
    UnknownTransaction,
    Unreachable,
)
from mq_client.cluster.connection import Connection
from mq_client.transactions import TransactionClient
from mq_dev.certificates import Authority, write_client
from mq_protocol.names import TRANSACTIONS_TOPIC
from mq_protocol.partitioner import coordinator_partition
from tests.cluster.harness import Cluster, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TOPIC = "t"
OLD, NEW = "etl", "etl-2"


def write(cluster: Cluster, certs: Path, user: str, key: tuple[str, str], batch_id: int, *numbers: int) -> None:
    """A run of the query: one micro-batch, decided and published."""
    connection = Connection(cluster.bootstrap, security=Security(certs, user))
    with TransactionClient(connection) as client:
        stage = client.open_stage(key, batch_id, f"{user} {batch_id}")
        stage.add(TOPIC, 0, pa.table({"n": pa.array(numbers, pa.int64())}))
        client.decide(key, batch_id, f"{user} {batch_id}", stage.finish())


def numbers_of(cluster: Cluster) -> list[int]:
    with Reader(cluster.bootstrap, security=cluster.security) as reader:
        start, end = cluster.admin.offsets(TOPIC)[0]
        return [n for batch in reader.read(TOPIC, 0, start, end) for n in batch.column("n").to_pylist()]


def give(admin: Admin, key: str, given: list[GivenTransaction]) -> None:
    """As somebody who says it again while nobody knows the key, since its next coordinator is not ready yet."""

    def is_given() -> bool:
        with contextlib.suppress(UnknownTransaction, Unreachable):
            given.append(admin.give_transaction(key, f"User:{NEW}"))
        return bool(given)

    wait_until(is_given, "the key is given")


def test_a_query_goes_on_under_another_name_though_its_coordinator_is_killed(
    start_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    certs = tmp_path / "certs"
    cluster = start_cluster(certs=certs)
    authority = Authority.open(certs, tmp_path / "certs.ca.key")
    admin = cluster.admin
    admin.create_topic(TOPIC, schema="n long NOT NULL", partitions=1, replicas=3)
    for user in (OLD, NEW):
        write_client(authority, certs, user)
        rule = AclRule(f"User:{user}", "Write", "Topic", TOPIC)
        wait_until(lambda rule=rule: not admin.alter_acls([rule]).not_judging, "every broker judges by the rule")  # type: ignore[misc]
    key = str(uuid.uuid4()), TOPIC
    write(cluster, certs, OLD, key, 0, 1, 2)
    [known] = wait_until(lambda: admin.transactions(key[0]), "the coordinator answers")
    assert known.owner == f"User:{OLD}"

    given: list[GivenTransaction] = []
    giving = threading.Thread(target=give, args=(admin, known.key, given))
    partitions = len(cluster.leaders(TRANSACTIONS_TOPIC))
    coordinator = cluster.leader(TRANSACTIONS_TOPIC, coordinator_partition(*key, partitions))
    giving.start()
    cluster.kill(coordinator)
    giving.join(90)
    assert [each.owner for each in given] == [f"User:{NEW}"]
    wait_until(lambda: [each.owner for each in admin.transactions(key[0])] == [f"User:{NEW}"], "a leader knows it")
    with pytest.raises(PermissionDenied, match="another user's"):
        write(cluster, certs, OLD, key, 1, 666)
    write(cluster, certs, NEW, key, 1, 3)
    cluster.restart(coordinator)
    cluster.wait_for_isr(TRANSACTIONS_TOPIC, 3)
    write(cluster, certs, NEW, key, 2, 4)
    with pytest.raises(PermissionDenied, match="another user's"):
        write(cluster, certs, OLD, key, 3, 666)
    wait_until(lambda: len(numbers_of(cluster)) >= 4, "all that is decided is published")
    assert numbers_of(cluster) == [1, 2, 3, 4], "each once, and nothing of who had the key before"
