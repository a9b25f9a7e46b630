"""A leader knows when it last heard of a replica that is not in sync."""

from __future__ import annotations

from tests.mq_broker.core.world import World


def test_a_leader_tells_when_it_last_heard_of_a_replica_that_is_not_in_sync() -> None:
    world = World()
    world.command("start")
    leader = next(host.broker for host in world.hosts.values() if host.replica.leading)
    lost = next(broker for broker in world.hosts if broker != leader)
    rest = [str(broker) for broker in world.hosts if broker != lost]
    replica = world.hosts[leader].replica
    assert replica.last_heard_ms == {}
    world.command(f"crash {lost}")
    crashed_at = world.now_ms
    world.command("seen " + " ".join(rest))
    world.command("settle " + " ".join(rest))
    world.command(f"time 60000 {leader}")
    assert lost not in replica.isr
    assert replica.last_heard_ms.keys() == {lost}
    assert crashed_at - 1_000 <= replica.last_heard_ms[lost] <= crashed_at
    assert world.hosts[int(rest[0]) if rest[0] != str(leader) else int(rest[1])].replica.last_heard_ms == {}
