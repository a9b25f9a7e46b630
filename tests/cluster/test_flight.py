"""Arrow Flight at three brokers: each partition is read where its leader is, also after that leader has died."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from mq_client import Producer
from mq_protocol.pem import read
from tests.cluster.harness import Cluster, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PARTITIONS = 6
ROWS = 500
T = flight.FlightDescriptor.for_path("t")


def connected(cluster: Cluster, uri: str) -> flight.FlightClient:
    """As whoever the cluster's clients are."""
    if cluster.security is None:
        return flight.connect(uri)
    pem = read(cluster.security.files())
    return flight.connect(uri, tls_root_certs=pem.ca, cert_chain=pem.certificate, private_key=pem.key)


def uri_of(cluster: Cluster, broker: int) -> str:
    return f"grpc+{'tcp' if cluster.security is None else 'tls'}://{cluster.brokers[broker].flight}"


def locations(cluster: Cluster, broker: int) -> dict[int, str]:
    """Where each partition is read, as that broker says."""
    with connected(cluster, uri_of(cluster, broker)) as client:
        found = client.get_flight_info(T).endpoints
    return {
        json.loads(each.ticket.ticket)["partition"]: each.locations[0].uri.decode() if each.locations else ""
        for each in found
    }


def read_all(cluster: Cluster, broker: int) -> dict[int, list[int]]:
    """Each partition, at the location that its endpoint names, as any client of Flight does."""
    found: dict[int, list[int]] = {}
    with connected(cluster, uri_of(cluster, broker)) as asked:
        for each in asked.get_flight_info(T).endpoints:
            partition = json.loads(each.ticket.ticket)["partition"]
            with connected(cluster, each.locations[0].uri.decode()) as leader:
                found[partition] = leader.do_get(each.ticket).read_all()["n"].to_pylist()
    return found


def test_a_typed_topic_is_read_at_its_leaders_and_at_their_successors(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(3, flight=True, arguments=("--session-timeout-ms", "2000"))
    cluster.admin.create_topic("t", partitions=PARTITIONS, replicas=3, schema="n long, word string")
    expected: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}

    def write(first: int) -> None:
        with Producer(cluster.bootstrap, security=cluster.security) as producer:
            for n in range(first, first + ROWS):
                producer.publish("t", {"n": n, "word": f"word {n}"}, partition=n % PARTITIONS)
                expected[n % PARTITIONS].append(n)

    def at_leaders() -> dict[int, str]:
        return {partition: uri_of(cluster, cluster.leader("t", partition)) for partition in range(PARTITIONS)}

    write(0)
    for broker in cluster.brokers:
        wait_until(lambda at=broker: locations(cluster, at) == at_leaders(), "each leader is named")  # type: ignore[misc]
        assert read_all(cluster, broker) == expected
    dead = cluster.leader("t", 0)
    other = next(broker for broker in cluster.brokers if broker != dead)
    _follower_serves_what_it_knows(cluster, dead, other, expected[0])
    cluster.kill(dead)
    cluster.wait_for_leaders("t", other_than=dead)
    write(ROWS)
    gone = uri_of(cluster, dead)
    wait_until(lambda: not {gone, ""} & set(locations(cluster, other).values()), "successors are named")
    assert read_all(cluster, other) == expected


def _follower_serves_what_it_knows(cluster: Cluster, leader: int, follower: int, expected: list[int]) -> None:
    """A replica serves what is named by offsets, and says of all else where the leader is."""

    def get(**wanted: Any) -> pa.Table:
        with connected(cluster, uri_of(cluster, follower)) as client:
            return client.do_get(flight.Ticket(json.dumps({"topic": "t", "partition": 0, **wanted}))).read_all()

    at = uri_of(cluster, leader)
    for wanted in ({}, {"start": 0}, {"end": 3}, {"start": 0, "end": len(expected) + 1}):
        with pytest.raises(flight.FlightUnavailableError, match=re.escape(f"its Flight address is {at}")):
            get(**wanted)

    def known() -> bool:
        try:
            return get(start=0, end=len(expected))["n"].to_pylist() == expected
        except flight.FlightUnavailableError:  # it has not heard of the last commits yet
            return False

    wait_until(known, "the follower knows what is committed")
