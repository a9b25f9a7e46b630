"""Arrow Flight at three brokers: each partition is read where its leader is, also after that leader has died."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from pyarrow import flight

from mq_client import Producer
from mq_protocol.access.pem import read
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
    """Each partition, at the location that its endpoint names, as any client of Flight does. None where somebody is
    named who does not lead, or nobody."""
    found: dict[int, list[int]] = {}
    with contextlib.suppress(flight.FlightUnavailableError), connected(cluster, uri_of(cluster, broker)) as asked:
        for each in asked.get_flight_info(T).endpoints:
            partition = json.loads(each.ticket.ticket)["partition"]
            if not each.locations:
                continue
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
        wait_until(lambda at=broker: read_all(cluster, at) == expected, "everything is read")  # type: ignore[misc]
    _follower_serves_what_it_knows(cluster, expected[0])
    dead = cluster.leader("t", 0)
    other = next(broker for broker in cluster.brokers if broker != dead)
    cluster.kill(dead)
    cluster.wait_for_leaders("t", other_than=dead)
    write(ROWS)
    gone = uri_of(cluster, dead)
    wait_until(lambda: not {gone, ""} & set(locations(cluster, other).values()), "successors are named")
    wait_until(lambda: read_all(cluster, other) == expected, "everything is read")


def _follower_serves_what_it_knows(cluster: Cluster, expected: list[int]) -> None:
    """A replica serves what is named by offsets, and says of all else where the leader is."""

    def asked(**wanted: Any) -> tuple[list[int], str]:
        """What a follower serves, and whether it names the leader: who that is may have changed."""
        leader = cluster.leader("t")
        with connected(cluster, uri_of(cluster, leader % len(cluster.brokers) + 1)) as client:
            try:
                ticket = flight.Ticket(json.dumps({"topic": "t", "partition": 0, **wanted}))
                return client.do_get(ticket).read_all()["n"].to_pylist(), ""
            except flight.FlightUnavailableError as error:
                return [], "leads" if f"its Flight address is {uri_of(cluster, leader)}" in str(error) else str(error)

    for wanted in ({}, {"start": 0}, {"end": 3}, {"start": 0, "end": len(expected) + 1}):
        wait_until(lambda wanted=wanted: asked(**wanted) == ([], "leads"), f"who leads is named for {wanted}")  # type: ignore[misc]
    wait_until(lambda: asked(start=0, end=len(expected)) == (expected, ""), "a follower knows what is committed")
