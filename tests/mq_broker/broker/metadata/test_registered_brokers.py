"""This broker's registration and its list of brokers, against a coordination service that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.coordination.interface import BrokerRegistration, CoordinationEvent
from mq_broker.core.messages import LeaderName
from mq_protocol.errors import CoordinationUnavailable, IncompatibleVersion, InvalidRequest, TritonMQError
from mq_protocol.versions import Versions
from tests.coroutines import virtual_time
from tests.logs import said_here

ME = BrokerRegistration(1, 7, "here:1", "rack-1", "here:2")
OTHER = BrokerRegistration(2, 3, "there:1", "rack-2", "there:2")
ALONE = BrokerRegistration(3, 1, "alone:1")


class Service:
    """Registers whoever asks, as long as it is `up`. `meanwhile` is done while the list is read."""

    def __init__(self) -> None:
        self.registered: dict[int, BrokerRegistration] = {2: OTHER, 3: ALONE}
        self.registrations = 0
        self.fails: TritonMQError | None = None
        self.level_said: int | TritonMQError = 1
        self.meanwhile: list[Callable[[], None]] = []
        self.seen: list[list[int]] = []
        self.lost = 0
        self.read = asyncio.Event()
        service: Any = self
        self.cluster = Cluster(service, ME, self._saw, self._lost)

    def _saw(self) -> None:
        self.seen.append(sorted(self.cluster.brokers))
        self.read.set()

    def _lost(self) -> None:
        self.lost += 1

    async def register(self, me: BrokerRegistration) -> None:
        if self.fails is not None:
            raise self.fails
        self.registrations += 1
        self.registered[me.broker] = me

    async def level(self) -> int:
        if isinstance(self.level_said, TritonMQError):
            raise self.level_said
        return self.level_said

    async def brokers(self) -> dict[int, BrokerRegistration]:
        found = dict(self.registered)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return found


@pytest.fixture
def service() -> Service:
    return Service()


@virtual_time
async def test_a_broker_that_joins_is_registered_once_and_knows_the_others(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    here = service.cluster
    await here.join()
    await here.join()
    assert service.registrations == 1
    assert not said_here(caplog), "nothing was removed"
    assert service.seen == [[1, 2, 3], [1, 2, 3]]
    assert here.live == (LeaderName(1, 7), LeaderName(2, 3), LeaderName(3, 1))
    assert here.racks == {1: "rack-1", 2: "rack-2", 3: ""}
    assert [here.peer_address(broker) for broker in (2, 3, 9)] == ["there:2", None, None]
    assert (here.is_live(2, 3), here.is_live(2, 2), here.is_live(9, 1)) == (True, False, False)


@virtual_time
async def test_a_registration_that_was_removed_is_made_again_before_others_are_told_who_lives(service: Service) -> None:
    await service.cluster.join()
    del service.registered[1]
    await service.cluster.join()
    assert service.registrations == 2
    assert service.seen[-1] == [1, 2, 3]


@virtual_time
async def test_a_broker_whose_session_ends_while_it_reads_is_not_among_the_living(service: Service) -> None:
    """It is in what was read, and gone: it must not believe that it may lead."""
    await service.cluster.join()
    service.meanwhile = [lambda: service.cluster.hear(CoordinationEvent.SESSION_LOST)]
    await service.cluster.join()
    assert service.seen[-1] == [2, 3]
    assert service.lost == 1
    await service.cluster.join()
    assert (service.seen[-1], service.registrations) == ([1, 2, 3], 2)


@virtual_time
async def test_a_lost_session_is_told_at_once(service: Service) -> None:
    await service.cluster.join()
    service.cluster.hear(CoordinationEvent.SESSION_LOST)
    assert service.lost == 1
    assert sorted(service.cluster.brokers) == [2, 3]
    assert len(service.seen) == 1


@virtual_time
async def test_a_registration_that_failed_is_tried_again_by_the_next_reading(service: Service) -> None:
    service.fails = CoordinationUnavailable("away")
    with pytest.raises(CoordinationUnavailable):
        await service.cluster.join()
    service.fails = None
    await service.cluster.join()
    assert service.registrations == 1


@pytest.mark.parametrize(
    ("event", "reads", "topics"),
    [
        (CoordinationEvent.BROKERS_CHANGED, True, False),
        (CoordinationEvent.TOPICS_CHANGED, False, True),
        (CoordinationEvent.CONNECTED, True, True),
        (CoordinationEvent.SESSION_LOST, True, False),
        (CoordinationEvent.SUSPENDED, False, False),
        (None, True, False),
    ],
)
@virtual_time
async def test_what_is_read_again_on_which_hint(
    service: Service, event: CoordinationEvent | None, reads: bool, topics: bool
) -> None:
    await service.cluster.join()
    service.read.clear()
    following = asyncio.create_task(service.cluster.following().run())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not service.read.is_set()
    if event is not None:
        service.cluster.hear(event)
    else:
        service.cluster.read_again()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (service.read.is_set(), service.cluster.topics_changed.is_set()) == (reads, topics)
    following.cancel()
    await asyncio.wait({following})


@virtual_time
async def test_a_list_that_cannot_be_read_is_read_again_and_a_broker_whose_id_was_taken_stops(service: Service) -> None:
    await service.cluster.join()
    following = asyncio.create_task(service.cluster.following().run())
    service.fails = CoordinationUnavailable("away")
    service.cluster.hear(CoordinationEvent.SESSION_LOST)
    for _ in range(20):
        await asyncio.sleep(0)
    service.fails = None
    service.read.clear()
    await service.read.wait()
    assert service.seen[-1] == [1, 2, 3]
    service.fails = InvalidRequest("another process has this id")
    service.cluster.hear(CoordinationEvent.SESSION_LOST)
    with pytest.raises(InvalidRequest):
        await following


@virtual_time
async def test_without_a_hint_the_list_is_read_now_and_then(service: Service) -> None:
    following = asyncio.create_task(service.cluster.following().run())
    await service.read.wait()
    service.read.clear()
    await service.read.wait()
    following.cancel()
    await asyncio.wait({following})


UNREADABLE = CoordinationUnavailable("/features does not hold what TritonMQ writes there")


@virtual_time
async def test_a_level_that_cannot_be_read_keeps_no_broker_from_registering_again(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    await service.cluster.join()
    following = asyncio.create_task(service.cluster.following().run())
    service.level_said = UNREADABLE
    del service.registered[1]
    service.cluster.hear(CoordinationEvent.SESSION_LOST)
    service.read.clear()
    await service.read.wait()
    assert service.seen[-1] == [1, 2, 3]
    assert service.registrations == 2
    await asyncio.sleep(10)
    assert sum("/features" in told for told in caplog.messages) == 1, "said once, though asked often"
    service.level_said = 2  # repaired: this broker does not know that level, and hears of it without a hint
    with pytest.raises(IncompatibleVersion):
        await following


@virtual_time
async def test_a_broker_that_has_never_read_the_level_does_not_join(service: Service) -> None:
    service.level_said = UNREADABLE
    with pytest.raises(CoordinationUnavailable, match="/features"):
        await service.cluster.join()
    assert not service.registrations


@virtual_time
async def test_a_level_is_never_lowered_whatever_is_read(service: Service) -> None:
    anything: Any = service
    service.cluster = Cluster(anything, replace(ME, versions=Versions(level=2)), service._saw, service._lost)
    service.level_said = 2
    await service.cluster.join()
    service.level_said = 1
    await service.cluster.join()
    assert service.cluster.level == 2
