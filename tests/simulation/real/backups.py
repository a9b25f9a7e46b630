"""What is put back to an older copy of itself: the directory of one broker, or the state nodes.

Either is survived, since the other brokers have everything, and nothing that was acknowledged is lost. Nothing else
goes wrong until all is whole again: of three brokers one may lack what it is named for, and no more.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster

WHOLE_AGAIN_S = 40.0


async def old_directory(cluster: Cluster) -> None:
    """All brokers stop, one comes back with an older copy of its directory, and they start in any order."""
    random, machines = cluster.loop.random, list(cluster.machines.values())
    old = random.choice(machines)
    if not await _whole(cluster, 5.0):
        return
    copy = old.disk.graves / f"copy{len(list(old.disk.graves.iterdir()))}"
    shutil.copytree(old.disk.root, copy)
    await asyncio.sleep(random.uniform(0.5, 4.0))
    if not cluster.oracle.whole():
        return
    cluster.faults["directory put back"] += 1
    cluster.tell(f"all brokers stop, and the directory of {old.name} is put back to an older copy of itself")
    for machine in machines:
        machine.kill()
        machine.disk.kill_at = 0
    old.disk.erase()
    shutil.copytree(copy, old.disk.root, dirs_exist_ok=True)
    cluster.oracle.put_back(old.broker)
    random.shuffle(machines)
    if random.random() < 0.4:  # alone, for longer than the session of the leader that the node names
        old.start()
        await asyncio.sleep(cluster.plan.session_s + 3.0)
    for machine in machines:
        await asyncio.sleep(cluster.loop.often_short(0.001, 6.0))
        if not machine.up:
            machine.start()
    await _whole(cluster, WHOLE_AGAIN_S)


async def old_coordination(cluster: Cluster) -> None:
    """The coordination service starts from a backup. Some leaders have changed since; brokers go on, or one of them, or
    all, start anew."""
    random, zookeeper = cluster.loop.random, cluster.zookeeper
    if not await _whole(cluster, 5.0):
        return
    copy = zookeeper.copy()
    killed = random.choice(list(cluster.machines.values()))
    killed.kill()
    await asyncio.sleep(cluster.plan.session_s + random.uniform(0.5, 4.0))
    cluster.faults["coordination put back"] += 1
    restarted = random.sample(list(cluster.machines.values()), random.choice((0, 1, len(cluster.machines))))
    cluster.tell(f"the coordination service is put back; {[machine.name for machine in restarted]} start anew")
    for machine in restarted:
        machine.kill()
    zookeeper.put_back(copy)
    for machine in dict.fromkeys((killed, *restarted)):
        await asyncio.sleep(cluster.loop.often_short(0.001, 6.0))
        if not machine.up:
            machine.start()
    await _whole(cluster, WHOLE_AGAIN_S)


async def _whole(cluster: Cluster, seconds: float) -> bool:
    until = cluster.loop.time() + seconds
    while not cluster.oracle.whole():
        if cluster.loop.time() > until:
            return False
        await asyncio.sleep(0.2)
    return True
