"""A broker is ready once what it holds is in sync, and says so to everybody who asks."""

from __future__ import annotations

import asyncio
import math
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.metrics.health import Readiness, Systemd
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.messages import LeaderName, NodeState
from mq_broker.measured import ALARMS
from mq_broker.storage.sealed import Altered, KeyAbsent, SealedAway
from mq_protocol.errors import CoordinationUnavailable
from tests.coroutines import virtual_time


@dataclass(eq=False)
class Part:
    """A replica as the partition shows it, and as its core does; its log is `mine`."""

    name: str
    topic: Topic
    serving: bool
    number: int = 0
    closed: bool = False
    log_id: str = "mine"

    @property
    def replica(self) -> Part:
        return self

    @property
    def identity(self) -> Part:
        return self


def topic(name: str) -> Topic:
    return Topic.of(TopicSpec(name, name, ((1,),)))


class World:
    """Broker 1 with replicas whose nodes the test writes: `nodes[name]` is the ISR, by broker, or an error."""

    def __init__(self) -> None:
        self.state = "serving"
        self.nodes: dict[str, Any] = {}
        self.asked: list[str] = []
        self.replicas: dict[str, Any] = {}
        self.closed: dict[str, SealedAway] = {}
        self.broker = 1

    @property
    def coordination(self) -> World:
        return self

    def assigned(self) -> list[tuple[Topic, int]]:
        return [(topic(name), 0) for name in sorted(self.replicas)]

    def hosted(self, asked: Topic, _number: int) -> Any:
        return self.replicas[asked.spec.name]

    def why_closed(self, asked: Topic, _number: int) -> SealedAway | None:
        return self.closed.get(asked.spec.name)

    def holds(self, name: str, node: Any, *, serving: bool = False) -> Any:
        self.nodes[name] = node
        part = self.replicas[name] = Part(name, topic(name), serving)
        return part

    async def read_state(self, topic_id: str, _number: int) -> Any:
        self.asked.append(topic_id)
        node = self.nodes[topic_id]
        if isinstance(node, Exception):
            raise node
        return None if node is None else (3, NodeState(LeaderName(2, 1), 1, tuple(node.items()), 0, ""))

    def readiness(self, timeout_s: float = 60.0) -> Readiness:
        world: Any = self
        return Readiness(world, lambda: self.state, timeout_s)


@virtual_time
async def test_a_broker_is_not_ready_before_every_replica_is_named_in_sync_with_its_log() -> None:
    world = World()
    world.holds("led", None, serving=True)
    world.holds("named", {1: "mine", 2: "b"})
    world.holds("new", {1: ""})
    world.holds("behind", {2: "b"})
    world.holds("former", {1: "the log before", 2: "b"})
    world.holds("gone", None)
    world.holds("unknown", CoordinationUnavailable("away"))
    readiness = world.readiness()
    assert await readiness.look() is None
    assert readiness.why_not() == "not in sync yet: behind, former, gone, unknown"
    world.asked.clear()
    for name in ("behind", "former", "gone", "unknown"):
        world.nodes[name] = {1: "mine"}
    assert await readiness.look() == math.inf
    assert (readiness.why_not(), readiness.ready.is_set()) == ("", True)
    assert set(world.asked) == {"behind", "former", "gone", "unknown"}  # what was found in sync is not asked again
    world.nodes["behind"] = {2: "b"}
    assert readiness.why_not() == ""  # it stays ready
    world.state = "draining"
    assert readiness.why_not() == "draining"


@virtual_time
async def test_after_the_time_out_it_is_ready_whatever_is_behind_and_that_is_an_alarm() -> None:
    before = ALARMS.rows()["ready_without_sync",]
    world = World()
    for number in range(7):
        world.holds(f"p{number}", {2: "b"})
    patient = world.readiness()
    assert await patient.look() is None
    assert "and 2 more" in patient.why_not()
    readiness = world.readiness(timeout_s=5.0)
    assert await readiness.look() is None
    await asyncio.sleep(5.0)
    assert await readiness.look() == math.inf
    assert readiness.why_not() == ""
    assert ALARMS.rows()["ready_without_sync",] == before + 1


@virtual_time
async def test_what_is_closed_is_not_ready_and_without_its_key_not_after_the_time_out_either() -> None:
    world = World()
    world.holds("led", None, serving=True)
    world.replicas |= {"keyless": None, "opening": None}
    world.closed["keyless"] = KeyAbsent("no key", "k")
    readiness = world.readiness(timeout_s=0.0)
    assert await readiness.look() is None
    told = "not in sync yet: keyless-0 (closed: its key is missing or wrong)"
    assert readiness.why_not() == f"{told}, opening-0 (not open yet)"
    world.holds("opening", {1: "mine"})
    assert await readiness.look() is None
    assert readiness.why_not() == told
    world.holds("keyless", {1: "mine"})
    assert await readiness.look() == math.inf
    assert readiness.why_not() == ""
    world.replicas["altered"] = None
    world.closed["altered"] = Altered("altered", "k")
    other = world.readiness(timeout_s=60.0)
    assert await other.look() is None
    assert other.why_not().endswith("altered-0 (closed: altered on its disk)")
    assert await world.readiness(timeout_s=0.0).look() == math.inf  # no other broker has it from this one


def test_systemd_is_told_when_the_broker_is_ready_lives_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        systemd, readiness = Systemd(), World().readiness()
        assert systemd.look(readiness) == 0.01, "half of what it waits for"
        readiness.ready.set()
        for _ in range(2):
            assert systemd.look(readiness) == 0.01
        systemd.tell("STOPPING=1")
        words = [heard.recv(100) for _ in range(5)]
        assert words == [b"WATCHDOG=1", b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"STOPPING=1"]
