"""What each durability survives: ARCHITECTURE.md's table, a cell a case. Three replicas, two of them enough to
acknowledge.

A cell that says "survived" runs that fault, again and again, under load: every invariant holds, nothing acknowledged is
lost, and all is whole once the faults stop. A cell that says "not survived" shows what happens instead: the partition
stays without a leader, for an operator to decide, and never serves less than it had acknowledged.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from mq_broker.core.messages import ReplicaSettings
from tests.simulation.cluster import Cluster, Plan
from tests.simulation.nemesis import Nemesis
from tests.simulation.oracle import Violation

SURVIVED = [
    (durability, fault)
    for durability, faults in {
        "fsync": (
            "kill",
            "kill_all",
            "power_loss",
            "power_loss_of_all",
            "emptied_disk",
            "sync_fails",
            "damage",
            "disk_full",
        ),
        "os": ("kill", "kill_all", "power_loss", "emptied_disk", "sync_fails", "damage", "disk_full"),
        "memory": ("kill", "power_loss"),
    }.items()
    for fault in faults
]
NOT_SURVIVED = [("os", "power_loss_of_all"), ("memory", "kill_all"), ("memory", "power_loss_of_all")]


def calm_plan(durability: str, fault: str) -> Plan:
    """Three brokers under load, and that one kind of fault."""
    settings = ReplicaSettings((1, 2, 3), 2, volatile=durability == "memory")
    return replace(
        Plan.of(1),
        brokers=3,
        partitions=1,
        durability=durability,
        settings=settings,
        session_ms=4_000,
        trouble_ms=20_000,
        fault_every_ms=2_500,
        faults=(fault,),
        producers=2,
        pace_ms=100,
        leaders_hit=0.4,
        rough=0.0,
        answers_lost=0.0,
    )


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize(("durability", "fault"), SURVIVED)
def test_survived(durability: str, fault: str, seed: int) -> None:
    cluster = Cluster(seed, calm_plan(durability, fault))
    cluster.run()
    assert cluster.workload.done["batches, acks=committed"] > 0
    assert cluster.faults[fault] > 1


@pytest.mark.parametrize(("durability", "fault"), NOT_SURVIVED)
def test_not_survived(durability: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nemesis, "_may_lose", lambda *_: True)  # the simulator otherwise keeps within what is promised
    plan = replace(calm_plan(durability, fault), fault_every_ms=10_000)
    cluster = next(cluster for cluster in (Cluster(seed, plan) for seed in range(1, 20)) if _breaks(cluster, fault))
    acknowledged = cluster.workload.done["batches, acks=committed"]
    assert acknowledged > 0
    assert not any(host.replica.leading for broker in cluster.brokers.values() for host in broker.hosts.values())


def _breaks(cluster: Cluster, fault: str) -> bool:
    """Run it. Whether it ended without a leader; any other end but a whole cluster is an error."""
    try:
        cluster.run()
    except Violation as violation:
        if "nobody leads" not in str(violation):
            raise
        assert cluster.faults[fault] > 0
        return True
    return False
