"""Replicas are spread over brokers and racks, leaders over brokers."""

from __future__ import annotations

from collections import Counter

import pytest

from mq_broker.broker.administration.placement import place
from mq_protocol.errors import NotEnoughBrokers


def test_leaders_and_replicas_are_spread_evenly() -> None:
    assignment = place(6, 2, {1: "", 2: "", 3: ""}, [])
    assert Counter(members[0] for members in assignment) == {1: 2, 2: 2, 3: 2}
    assert Counter(broker for members in assignment for broker in members) == {1: 4, 2: 4, 3: 4}
    assert all(len(set(members)) == 2 for members in assignment)


def test_what_brokers_hold_already_counts() -> None:
    existing = [(1, 2), (1, 2), (1, 2)]
    assignment = place(3, 1, {1: "", 2: "", 3: ""}, existing)
    assert [members[0] for members in assignment] == [3, 2, 3] or Counter(m[0] for m in assignment)[1] == 0


def test_replicas_never_share_a_rack_while_there_are_racks_enough() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    for members in place(30, 3, racks, []):
        assert {racks[broker] for broker in members} == {"a", "b", "c"}


def test_with_fewer_racks_than_replicas_brokers_stay_distinct() -> None:
    for members in place(8, 3, {1: "a", 2: "a", 3: "a", 4: "b"}, []):
        assert len(set(members)) == 3
        assert 4 in members


def test_a_start_turns_the_order_among_equals() -> None:
    assert place(1, 1, {1: "", 2: "", 3: ""}, [], start=1) == ((2,),)


def test_too_few_brokers_are_named() -> None:
    with pytest.raises(NotEnoughBrokers, match=r"3 replicas need 3 live brokers and there are 2 \(1, 4\)"):
        place(1, 3, {1: "", 4: ""}, [])


def test_leaders_are_spread_though_every_broker_holds_every_partition() -> None:
    assignment = place(4, 2, {1: "", 2: ""}, [])
    assert sorted(members[0] for members in assignment) == [1, 1, 2, 2]
