"""The world of one test: a loop whose time is virtual, wires and disks. Brokers run in it as they are.

`in_virtual_time(scenario())` stands in place of `asyncio.run`. What the scenario and the brokers wait for comes at
once, in the order in which it would come; chance has a seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextvars import Context
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from tests.simulation.real.disk import Disk
from tests.simulation.real.ending import in_silence, throw_away
from tests.simulation.real.loop import NumberedTask, Process, VirtualLoop
from tests.simulation.real.substitutes import of_the_world, put_in_place
from tests.simulation.real.wires import Network
from tests.simulation.real.zookeeper import ZooKeeper

T = TypeVar("T")


class World:
    """Owns the loop, the wires, and the disks of all directories that brokers of the test have had."""

    def __init__(self, seed: int) -> None:
        self.loop = VirtualLoop(Random(seed))
        self.faults: Counter[str] = Counter()
        self.network = Network(self.loop, lambda _: None)
        self._disks: dict[Path, Disk] = {}
        self._processes: list[Process] = []
        self._buried: list[Any] = []
        self._zookeepers: dict[str, ZooKeeper] = {}

    def disk(self, directory: Path) -> Disk:
        if directory not in self._disks:
            self._disks[directory] = Disk(
                directory, directory.with_name(f"{directory.name}.graves"), self.loop, self.faults
            )
        return self._disks[directory]

    def process(self, name: str, directory: Path, broker: int = 0) -> Process:
        process = Process(f"{name}#{len(self._processes)}", broker, self.disk(directory))
        self._processes.append(process)
        return process

    def zookeeper(self, root: str, session_s: float) -> ZooKeeper:
        """That whose nodes are below `root`. It is there when it is first asked for."""
        if root not in self._zookeepers:
            self._zookeepers[root] = ZooKeeper(self.loop, self.faults, session_s)
        return self._zookeepers[root]

    def kill(self, process: Process) -> None:
        """At once, in the middle of whatever it does."""
        self._buried += [
            task for task in asyncio.all_tasks(self.loop) if isinstance(task, NumberedTask) and task.process is process
        ]
        process.kill()
        if process.disk is not None:
            process.disk.close_all_of(process)

    def end(self) -> None:
        """All that is left is killed."""
        for process in self._processes:
            self.kill(process)
        with in_silence():
            throw_away(self.loop, self._buried)
            self._buried.clear()
            gc.collect()


_present: World | None = None


def present() -> World | None:
    """That in which this test runs; None: in real time."""
    return _present


def the_world() -> World:
    """That in which this test runs, for its disks and its wires."""
    assert _present is not None, "this test does not run in virtual time"
    return _present


def in_virtual_time(scenario: Coroutine[Any, Any, T], seed: int = 0) -> T:
    """To its end, and its result."""
    with _world(seed) as world:
        task = world.loop.create_task(scenario, context=Context())
        task.add_done_callback(lambda _: world.loop.stop())
        world.loop.run_forever()
        return task.result()


@contextlib.contextmanager
def _world(seed: int) -> Iterator[World]:
    global _present
    world = World(seed)
    _present = world
    with put_in_place(of_the_world(world.loop, world.network)):
        try:
            yield world
        finally:
            world.end()
            _present = None
