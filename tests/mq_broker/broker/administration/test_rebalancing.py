"""Who is to hold which partition once brokers come, go, or hold too much."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from mq_broker.broker.administration.placement import place
from mq_broker.broker.administration.rebalancing import Layout, balanced, drained, resized
from mq_protocol.errors import NotEnoughBrokers

FLAT = {1: "", 2: "", 3: ""}


def layout_of(
    partitions: int, replicas: int, racks: Mapping[int, str], topic: str = "t"
) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(topic, number): members for number, members in enumerate(place(partitions, replicas, racks, []))}


def holds(layout: Layout) -> Counter[int]:
    return Counter(broker for members in layout.values() for broker in members)


def leads(layout: Layout) -> Counter[int]:
    return Counter(members[0] for members in layout.values())


def spread(counts: Counter[int], brokers: Mapping[int, str]) -> int:
    return max(counts[broker] for broker in brokers) - min(counts[broker] for broker in brokers)


def test_a_drained_broker_holds_nothing_and_the_others_share_it() -> None:
    racks = {1: "", 2: "", 3: "", 4: ""}
    layout = layout_of(12, 3, racks)
    changed = drained(2, racks, layout)
    after = {**layout, **changed}
    assert changed.keys() == {where for where, members in layout.items() if 2 in members}
    assert set(holds(after)) == {1, 3, 4}
    assert all(len(set(members)) == 3 for members in after.values())
    assert spread(holds(after), {1: "", 3: "", 4: ""}) == 0
    assert spread(leads(after), {1: "", 3: "", 4: ""}) <= 2


def test_what_a_drained_broker_led_goes_to_a_replica_that_is_there_already() -> None:
    assert drained(1, {1: "", 2: "", 3: "", 4: ""}, {("t", 0): (1, 2, 3)}) == {("t", 0): (2, 3, 4)}


def test_what_it_only_follows_keeps_its_leader_and_its_ranks() -> None:
    assert drained(2, {1: "", 2: "", 3: "", 4: ""}, {("t", 0): (1, 2, 3)}) == {("t", 0): (1, 4, 3)}


def test_the_only_replica_is_moved_too() -> None:
    assert drained(1, FLAT, {("t", 0): (1,), ("t", 1): (2,)}) == {("t", 0): (3,)}


def test_a_broker_that_is_dead_is_drained_alike() -> None:
    assert drained(1, {2: "", 3: "", 4: ""}, {("t", 0): (1, 2, 3)}) == {("t", 0): (2, 3, 4)}


def test_a_drain_prefers_racks_that_the_partition_does_not_have() -> None:
    racks = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b"}
    assert drained(1, racks, {("t", 0): (1, 2, 3)}) == {("t", 0): (2, 3, 4)}


def test_a_drain_that_cannot_be_names_the_topic_and_what_to_do() -> None:
    with pytest.raises(
        NotEnoughBrokers,
        match=r"'wide' has 3 replicas and without broker 2 only 2 brokers are live \(1, 3\).*--replicas",
    ):
        drained(2, FLAT, {("narrow", 0): (2,), ("wide", 0): (1, 2, 3)})


def test_a_topic_is_given_more_replicas_where_least_is() -> None:
    layout = {("t", 0): (1,), ("t", 1): (1,), ("other", 0): (2, 1)}
    after = resized(2, FLAT, layout, "t")
    assert after == {("t", 0): (1, 3), ("t", 1): (1, 2)}
    assert resized(2, FLAT, {**layout, **after}, "t") == {}
    with pytest.raises(NotEnoughBrokers, match="4 replicas of topic 't' need 4 brokers and 3 are live"):
        resized(4, FLAT, layout, "t")


def test_with_fewer_replicas_those_of_the_lowest_rank_go() -> None:
    assert resized(1, FLAT, {("t", 0): (3, 1, 2)}, "t") == {("t", 0): (3,)}


def test_a_new_broker_gets_its_share_and_no_more_is_moved_than_that() -> None:
    racks = {1: "", 2: "", 3: "", 4: ""}
    layout = layout_of(24, 3, FLAT)
    after = {**layout, **balanced(racks, layout)}
    assert spread(holds(after), racks) == 0
    assert spread(leads(after), racks) <= 1
    moved = sum(len(set(after[where]) - set(layout[where])) for where in layout)
    assert moved == holds(after)[4] == 18
    assert balanced(racks, after) == {}


def alone(*counts: int) -> dict[tuple[str, int], tuple[int, ...]]:
    """So many partitions of one replica on broker 1, on broker 2, and so on."""
    members = [(broker,) for broker, count in enumerate(counts, 1) for _ in range(count)]
    return {("t", number): each for number, each in enumerate(members)}


@pytest.mark.parametrize(
    ("counts", "moved"),
    [((4, 1), 1), ((6, 0, 0), 4), ((4, 4, 4, 0), 3), ((3, 3, 0), 2), ((5, 3, 0, 0), 4), ((3, 2), 0), ((10, 1, 1), 6)],
)
def test_no_replica_is_moved_that_would_have_to_be_moved_on_or_back(counts: tuple[int, ...], moved: int) -> None:
    racks = dict.fromkeys(range(1, len(counts) + 1), "")
    layout = alone(*counts)
    changed = balanced(racks, layout)
    assert len(changed) == moved
    assert spread(holds({**layout, **changed}), racks) <= 1


def test_of_partitions_with_followers_too_no_more_is_moved_than_a_new_broker_needs() -> None:
    pairs = [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)]
    layout = {("t", number): members for number, members in enumerate(pairs)}
    after = {**layout, **balanced({1: "", 2: "", 3: "", 4: ""}, layout)}
    assert holds(after) == {1: 3, 2: 3, 3: 3, 4: 3}
    assert sum(len(set(after[where]) - set(layout[where])) for where in layout) == 3


def test_followers_are_moved_before_leaders() -> None:
    assert balanced(FLAT, {("t", 0): (1,), ("t", 1): (2, 1)}) == {("t", 1): (2, 3)}


def test_what_is_even_is_left_alone() -> None:
    layout = layout_of(7, 2, FLAT)
    assert balanced(FLAT, layout) == {}


def test_leaders_are_evened_without_moving_a_replica() -> None:
    layout = {("t", number): (1, 2, 3) for number in range(6)}
    changed = balanced(FLAT, layout)
    after = {**layout, **changed}
    assert leads(after) == {1: 2, 2: 2, 3: 2}
    assert all(set(members) == {1, 2, 3} for members in after.values())
    assert len(changed) == 4


def test_a_leadership_is_passed_on_through_a_third_broker() -> None:
    layout = {
        ("t", 0): (1, 2),
        ("t", 1): (1, 2),
        ("t", 2): (1, 2),
        ("t", 3): (2, 3),
        ("t", 4): (3, 2),
        ("t", 5): (2, 3),
    }
    after = {**layout, **balanced(FLAT, layout)}
    assert leads(after) == {1: 2, 2: 2, 3: 2}


def test_balancing_never_puts_replicas_into_one_rack_that_were_in_two() -> None:
    racks = {1: "a", 2: "b", 3: "b"}
    layout = {("t", number): (1, 2) for number in range(4)}
    after = {**layout, **balanced(racks, layout)}
    assert holds(after) == {1: 4, 2: 2, 3: 2}
    assert all(1 in members for members in after.values())


def test_what_racks_keep_in_place_may_move_once_others_have_moved() -> None:
    racks = {1: "a", 2: "b", 3: "", 4: "a"}
    layout = {("t", 0): (1, 2, 3), ("t", 1): (4, 2, 3), ("t", 2): (3,), ("t", 3): (1, 2), ("t", 4): (1, 2)}
    after = {**layout, **balanced(racks, layout)}
    assert spread(holds(after), racks) == 1
    assert after["t", 3] != layout["t", 3] or after["t", 4] != layout["t", 4]


def test_replicas_of_brokers_that_are_gone_stay_where_they_are_named() -> None:
    layout = {("t", number): (9, 1) for number in range(4)}
    after = {**layout, **balanced({1: "", 2: ""}, layout)}
    assert holds(after) == {9: 4, 1: 2, 2: 2}


@pytest.mark.parametrize("seed", range(20))
def test_any_layout_becomes_even_and_stays_whole(seed: int) -> None:
    chance = random.Random(seed)
    racks = dict.fromkeys(range(1, chance.randint(3, 7)), "")
    layout = {
        ("t", number): tuple(chance.sample(sorted(racks), chance.randint(1, len(racks) - 1)))
        for number in range(chance.randint(1, 40))
    }
    after = {**layout, **balanced(racks, layout)}
    assert {where: len(set(members)) for where, members in after.items()} == {
        where: len(m) for where, m in layout.items()
    }
    assert spread(holds(after), racks) <= 1
    assert balanced(racks, after) == {}
