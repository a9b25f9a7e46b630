"""When a stream for all that broke, or was refused, is opened again: brokers and the loop are played."""

from __future__ import annotations

import pytest

from mq_client.consuming import feeds as feeds_module
from mq_client.errors import NotLeader, OffsetOutOfRange, QuotaExceeded, TritonMQError, Unreachable
from tests.mq_client.cluster.scripted import topic_info
from tests.mq_client.consuming.played_feeds import World, closes, opens


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [(Unreachable("the broker is gone"), feeds_module.SOON_S), (QuotaExceeded("no more"), feeds_module.AGAIN_S)],
)
def test_a_stream_that_may_not_be_opened_yet_is_opened_in_time_though_nothing_comes(
    world: World, error: TritonMQError, wait_s: float
) -> None:
    first, second = world.two()
    world.shared[0].over(error)
    world.loop.passes(wait_s - 0.1)
    assert len(world.shared) == 1
    world.loop.passes(0.1)
    first.opened(world.shared[1], 0, 5)
    assert first.place().fed
    assert second.place().fed
    world.loop.passes(feeds_module.AGAIN_S)
    assert len(world.shared) == 2


def test_a_partition_that_was_refused_is_asked_for_again_in_time_though_nothing_comes(world: World) -> None:
    first, second = world.two()
    first.opened(world.shared[0], 0, error=NotLeader("ask 3", 3, 2), active=False)
    world.loop.passes(feeds_module.SOON_S)
    assert opens(world.shared[1]) == [(0, 5)]
    first.subscriptions.remove("t")
    first.opened(world.shared[1], 0, error=NotLeader("ask 3", 3, 2), active=False)
    world.loop.passes(feeds_module.SOON_S)
    assert len(world.shared) == 2, "one alone needs none"
    assert not second.place().fed


def test_a_partition_that_cannot_be_had_from_there_is_not_asked_for_each_second(world: World) -> None:
    first, _ = world.two()
    first.opened(world.shared[0], 0, error=OffsetOutOfRange("lost"), active=False)
    world.loop.passes(feeds_module.AGAIN_S - 1)
    assert len(world.shared) == 1
    world.loop.passes(1)
    assert len(world.shared) == 2


def test_no_stream_is_opened_for_consumers_that_hold_too_much_to_be_fed(world: World) -> None:
    clients = world.client(), world.client()
    for client in clients:
        client.subscriptions._held["b:1"] = client.subscriptions.credit_bytes // 2  # of another partition
        client.opened(world.stream(client), 0, 5)
    assert not world.shared
    for client in clients:
        client.subscriptions._held["b:1"] = 0
        client.push(world.stream(client), 0, 5, 1)
    assert opens(world.shared[0]) == [(0, 6)]


def test_an_answer_to_a_former_opening_leaves_nobody_where_the_stream_is_not(world: World) -> None:
    clients = []
    for _ in range(6):
        clients.append(client := world.client())
        client.say(topic_info(1, 1, epoch=2))  # partition 1 is on the same broker, and keeps the stream open
        client.look()
    others, (early, leaves), late = clients[:2], clients[2:4], clients[4:]
    for client in others:
        client.opened(world.stream(client), 1, 0)
    [stream] = world.shared
    others[0].opened(stream, 1, 0)
    for client in (early, leaves):
        client.opened(world.stream(client), 0, 5)
    leaves.subscriptions._feeding.close(leaves.subscriptions.places.values())
    world.loop.passes(feeds_module.EMPTY_S)
    assert closes(stream) == [0], "before it was answered"
    for client in late:
        client.opened(world.stream(client), 0, 100)
    early.opened(stream, 0, 5)
    early.opened(stream, 0, 100)
    assert [client.place().fed for client in (early, *late)] == [False, True, True]
    early.look()
    assert (0, 5) in opens(world.stream(early))


def test_a_stream_that_breaks_again_and_again_is_opened_again_each_time_though_nothing_comes(world: World) -> None:
    first, second = world.two()
    for number in range(1, 4):
        world.shared[-1].over(Unreachable("the broker is gone"))
        assert len(world.shared) == number
        world.loop.passes(feeds_module.SOON_S)
        assert len(world.shared) == number + 1
    first.opened(world.shared[-1], 0, 5)
    assert first.place().fed
    assert second.place().fed


def test_a_partition_that_was_refused_is_not_asked_for_again_at_once(world: World) -> None:
    first, second = world.two()
    first.opened(world.shared[0], 0, error=NotLeader("ask 3", 3, 2), active=False)
    for client in (first, second):
        client.push(world.stream(client), 0, 5, 1)
    world.loop.passes(feeds_module.SOON_S - 0.1)
    assert [opens(stream) for stream in world.shared] == [[(0, 5)]]
    world.loop.passes(0.1)
    assert opens(world.shared[1]) == [(0, 6)]


def test_two_that_meet_are_fed_in_time_though_one_that_is_behind_them_waits_longer(world: World) -> None:
    behind = world.client()
    behind.opened(world.stream(behind), 0, 0)
    first, second = world.two()
    world.shared[0].over(Unreachable("the broker is gone"))
    world.loop.passes(feeds_module.SOON_S)
    assert opens(world.shared[-1]) == [(0, 5)]
    first.opened(world.shared[-1], 0, 5)
    assert first.place().fed
    assert second.place().fed
    assert not behind.place().fed
