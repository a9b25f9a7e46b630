"""How far the level of features is raised, and what keeps it from being raised."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from mq_broker.broker.administration.features import Features, describe_broker
from mq_broker.broker.metadata.topics import Topic
from mq_broker.coordination.interface import BrokerRegistration, TopicSpec
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import IncompatibleVersion
from mq_protocol.versions import Versions


class Service:
    """A coordination service in which brokers are registered that know these levels; brokers 1 to 3 hold replicas."""

    def __init__(self, levels: dict[int, int], level: int = 1) -> None:
        self.now = level
        self.levels = levels
        self.told = 0
        me: Any = self
        self._features = Features(me, me, me)

    def all(self) -> list[Topic]:
        return [Topic.of(TopicSpec("t", "0" * 32, ((1, 2), (2, 3))))]

    async def level(self) -> int:
        return self.now

    async def brokers(self) -> dict[int, BrokerRegistration]:
        return {
            broker: BrokerRegistration(broker, 1, f"h:{broker}", versions=Versions(level=level))
            for broker, level in self.levels.items()
        }

    async def raise_level(self, level: int) -> int:
        self.now = max(level, self.now)
        return self.now

    def read_again(self) -> None:
        self.told += 1

    def upgrade(self, *, plan: bool = False, force: bool = False) -> tuple[int, int, Sequence[int]]:
        """The level then, the level that it could have, and who is absent."""
        request = pb.UpgradeRequest(plan=plan, force=force)
        answer = asyncio.run(self._features.upgrade(request, 0.0))
        assert [(each.id, each.level) for each in answer.brokers] == sorted(self.levels.items())
        return answer.level, answer.target, list(answer.absent)


def test_the_level_is_raised_to_what_every_broker_knows_and_this_one_hears_of_it() -> None:
    service = Service({1: 4, 2: 3, 3: 5})
    assert service.upgrade() == (3, 3, [])
    assert (service.now, service.told) == (3, 1)


def test_a_plan_raises_nothing() -> None:
    service = Service({1: 2, 2: 2, 3: 2})
    assert service.upgrade(plan=True) == (1, 2, [])
    assert (service.now, service.told) == (1, 0)


def test_one_broker_of_the_last_release_keeps_the_level_where_it_is() -> None:
    service = Service({1: 2, 2: 1, 3: 2, 4: 2})
    assert service.upgrade(force=True) == (1, 1, [])
    assert service.now == 1


def test_a_broker_that_knows_less_than_the_level_lowers_nothing() -> None:
    service = Service({1: 2, 2: 1, 3: 2}, level=2)
    assert service.upgrade() == (2, 2, [])
    assert service.now == 2


def test_the_level_is_not_raised_while_a_broker_with_replicas_is_absent_unless_forced() -> None:
    service = Service({1: 2, 3: 2, 4: 2})
    assert service.upgrade(plan=True) == (1, 2, [2])
    with pytest.raises(IncompatibleVersion, match=r"brokers \[2\] hold replicas and are not registered.* --force"):
        service.upgrade()
    assert service.now == 1
    assert service.upgrade(force=True) == (2, 2, [2])
    assert service.now == 2


def test_an_absent_broker_does_not_matter_where_there_is_nothing_to_raise() -> None:
    assert Service({1: 2, 3: 2}, level=2).upgrade() == (2, 2, [2])


def test_clients_are_told_all_that_a_broker_registered_for_them() -> None:
    versions = Versions(release="1.2.3", level=4, protocol=6, protocol_oldest=5)
    told = pb.BrokerInfo()
    describe_broker(BrokerRegistration(2, 7, "h:1", "east", versions=versions), told)
    assert told == pb.BrokerInfo(
        id=2,
        address="h:1",
        incarnation=7,
        rack="east",
        release="1.2.3",
        level=4,
        protocol=6,
        protocol_oldest=5,
    )
