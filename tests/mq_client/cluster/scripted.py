"""A cluster that a test plays by itself: brokers answer what they are told to, and the clock moves only while somebody
waits.

`Scripted` is a real `Connection` whose questions do not leave the process. Its clock stands in for `time` where the
client waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from google.protobuf.message import Message

from mq_client.cluster import connection as connection_module
from mq_client.cluster import deadline as deadline_module
from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.listening import PATIENT
from mq_client.errors import OutcomeUnknown, TritonMQError
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, schema_to_bytes

R = TypeVar("R", bound=Message)

Answer = Callable[[Any], Message]


class Clock:
    """In the place of the module `time`. The test's threads move it by sleeping; one that another test left has the
    real one."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []
        self._threads = {threading.get_ident()}

    def adopt(self) -> None:
        """The calling thread works for the test as well."""
        self._threads.add(threading.get_ident())

    def monotonic(self) -> float:
        return self.now if threading.get_ident() in self._threads else time.monotonic()

    def sleep(self, seconds: float) -> None:
        if threading.get_ident() not in self._threads:
            time.sleep(seconds)
            return
        self.slept.append(seconds)
        self.now += seconds


def played_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time passes only where the client waits for it."""
    made = Clock()
    for module in (connection_module, deadline_module):
        monkeypatch.setattr(module, "time", made)
    return made


def topic_info(
    *leaders: int, epoch: int = 1, name: str = "t", topic_id: str = "x", schema: pa.Schema | None = None
) -> pb.TopicInfo:
    """A topic whose partitions have these leaders. With `schema` it is a typed one."""
    described = schema_to_bytes(RECORD_SCHEMA if schema is None else schema)
    info = pb.TopicInfo(name=name, topic_id=topic_id, schema=described, typed=schema is not None)
    for number, leader in enumerate(leaders):
        info.partitions.add(partition=number, leader=leader, leader_epoch=epoch, replicas=[1, 2, 3], isr=[1, 2, 3])
    return info


class Scripted(Connection):
    """`brokers[address]` answers metadata with that, or raises it, or is asked if it is a function. `answers[method]`
    is asked for all other methods. Every question takes `takes_s` of the clock; a longer one than its deadline ends as
    such questions do. `refusing`: addresses at which nobody listens. `faulty`: what is wrong with the handshake there.
    """

    def __init__(self, clock: Clock, bootstrap: str = "b:1", refused_s: float = PATIENT) -> None:
        super().__init__(bootstrap, refused_s=refused_s)
        self.clock = clock
        self.refusing: set[str] = set()
        self.faulty: dict[str, str] = {}
        self.takes_s: dict[str, float] = {}
        self.brokers_say: dict[str, Any] = {}
        self.answers: dict[str, Callable[[str, Any], Message]] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.allowed_s: list[float] = []

    def ask(self, address: str, method: str, request: Message, response: type[R], deadline: Deadline) -> R:
        copied = type(request)()
        copied.CopyFrom(request)
        self.asked.append((address, method, copied))
        self.allowed_s.append(deadline.remaining_s)
        takes_s = self.takes_s.get(address, 0.0)
        self.clock.now += min(takes_s, deadline.remaining_s)
        if takes_s and deadline.expired:
            raise OutcomeUnknown(f"{address} did not answer")
        answer = self.brokers_say[address] if method == "Metadata" else self.answers[method](address, copied)
        if callable(answer):
            answer = answer(copied)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, response)
        return answer

    def refuses(self, address: str) -> bool:
        return address in self.refusing

    def handshake_fault(self, address: str, error: TritonMQError) -> str | None:
        return self.faulty.get(address)

    def addresses_asked(self) -> list[str]:
        """Since this was last called."""
        asked = [address for address, _, _ in self.asked]
        self.asked.clear()
        return asked

    def learn(self, *topics: pb.TopicInfo, brokers: int = 3) -> TopicView:
        """As if a broker had said so. The view of the first."""
        self._learn(told(*topics, brokers=brokers))
        view = self.known_topic(topics[0].name)
        assert view is not None
        return view


def told(
    *topics: pb.TopicInfo, brokers: int = 3, unknown: tuple[str, ...] = (), more: bool = False
) -> pb.MetadataResponse:
    """What a broker says of these topics, while so many brokers live: 1 at `b:1`, and so on."""
    live = [pb.BrokerInfo(id=number, address=f"b:{number}", rack=f"r{number}") for number in range(1, brokers + 1)]
    return pb.MetadataResponse(brokers=live, topics=topics, unknown_topics=unknown, more=more)
