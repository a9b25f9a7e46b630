"""When a broker reads the list of topics anew, because it knows that its own is out of date."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from mq_broker.broker.administration.topics import Admin
from mq_broker.broker.config import AutoCreate
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TopicExists, UnknownTopic
from mq_protocol.names import TRANSACTIONS_TOPIC


class World:
    """A broker, and the service whose list it reads only when it is told to."""

    def __init__(self, *names: str) -> None:
        self.brokers = {1: None}
        self.there = set(names)
        self.known: set[str] = set()
        self.led: list[str] = []
        world: Any = self
        self.admin = Admin(world, world, world, world, world, auto_create=AutoCreate())
        stubbed: Any = self.admin
        stubbed._create = self._create
        stubbed._wait_until_led = self._wait_until_led

    async def _create(self, name: str, *_how: object) -> Any:
        raise TopicExists(f"another broker has just made {name}")

    async def _wait_until_led(self, topic: Any, _deadline: float) -> None:
        self.led.append(topic.spec.name)

    async def refresh(self) -> None:
        self.known = set(self.there)

    def all(self) -> list[Any]:
        return [self.find(name) for name in sorted(self.known)]

    def find(self, name: str) -> Any:
        return SimpleNamespace(spec=SimpleNamespace(name=name)) if name in self.known else None

    async def get(self, name: str) -> Any:
        """As after a read a moment ago: what is not known is not looked for again."""
        if name not in self.known:
            raise UnknownTopic(name)
        return self.find(name)

    async def delete_topic(self, name: str) -> None:
        self.there.remove(name)


def run(scenario: Callable[[World], Awaitable[None]], *names: str) -> None:
    async def main() -> None:
        await scenario(World(*names))

    asyncio.run(main())


def test_the_coordinators_topic_that_another_broker_has_just_made_is_found() -> None:
    async def scenario(world: World) -> None:
        assert (await world.admin.transactions_topic(1e9)).spec.name == TRANSACTIONS_TOPIC
        assert world.led == [TRANSACTIONS_TOPIC]

    run(scenario, TRANSACTIONS_TOPIC)


def test_a_topic_that_two_brokers_make_by_themselves_at_once_is_found_by_the_later_one() -> None:
    async def scenario(world: World) -> None:
        request = pb.MetadataRequest(topics=["t"], auto_create=True)
        made = await world.admin._made_by_itself(request, 1e9)
        assert made is not None
        assert made.spec.name == "t"

    run(scenario, "t")
