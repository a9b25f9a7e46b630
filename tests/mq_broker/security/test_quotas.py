"""Rates and counts by themselves: time is what the test says."""

from __future__ import annotations

import random

import pytest

from mq_broker.security.quotas import BURST_S, METERS_MIN, Bucket, Meter, Quotas
from mq_protocol.access.quotas import EVERYBODY, SECURED, UNLIMITED, Quota
from mq_protocol.errors import QuotaExceeded


@pytest.mark.parametrize("seed", range(8))
def test_whoever_waits_as_told_has_its_rate_and_a_burst_more(seed: int) -> None:
    """Any number of streams that share one bucket, with messages of any size: each waits until all is paid for."""
    chance = random.Random(seed)
    rate = chance.choice((1, 10, 1_000, 50 << 20))
    bucket, now, used = Bucket(rate), chance.uniform(0, 100), 0
    began, largest = now, rate * 3
    while now - began < 60:
        amount = chance.randint(1, largest)
        bucket.take(now, amount)
        used += amount
        now += bucket.delay(now)
        assert bucket.delay(now) == pytest.approx(0, abs=1e-6)
        assert used <= rate * (now - began + BURST_S) + rate * 1e-6
    assert used >= rate * (now - began), "nobody is given less than its rate"


def test_what_was_not_used_is_kept_for_one_second_only() -> None:
    bucket = Bucket(100)
    bucket.take(1_000.0, 100)
    assert bucket.delay(1_000.0) == 0
    bucket.take(1_000.0, 50)
    assert bucket.delay(1_000.0) == pytest.approx(0.5)


def test_a_reservation_that_comes_too_late_takes_nothing() -> None:
    bucket = Bucket(10)
    taken = [bucket.reserve(5.0, 1.0) for _ in range(25)]
    assert [yes for yes, _ in taken] == [True] * 20 + [False] * 5, "a second's worth at once, another one by waiting"
    assert taken[19][1] == pytest.approx(1.0)
    assert [delay for _, delay in taken[20:]] == pytest.approx([1.1] * 5)
    assert bucket.reserve(6.0, 1.0) == (True, pytest.approx(0.1))


def test_a_new_rate_is_that_at_which_the_rest_is_paid() -> None:
    bucket = Bucket(10)
    bucket.take(0.0, 110)
    assert bucket.delay(0.0) == pytest.approx(10)
    bucket.change(0.0, 100)
    assert bucket.delay(0.0) == pytest.approx(1)
    bucket.change(50.0, 1)
    assert bucket.delay(50.0) == 0


def test_each_quota_by_itself_is_ones_own_or_everybodys_or_the_default() -> None:
    quotas = Quotas(SECURED)
    assert dict(quotas.of("User:a")) == SECURED
    quotas.take(
        0.0,
        1,
        {
            "User:a": {Quota.PRODUCE: 5, Quota.STREAMS: UNLIMITED},
            EVERYBODY: {Quota.PRODUCE: 7, Quota.FETCH: 9, Quota.TOPICS: 3},
        },
    )
    assert dict(quotas.of("User:a")) == {
        **{quota: limit for quota, limit in SECURED.items() if quota is not Quota.STREAMS},
        Quota.PRODUCE: 5,
        Quota.FETCH: 9,
        Quota.TOPICS: 3,
    }
    assert quotas.limit_of("User:b", Quota.PRODUCE) == 7
    assert quotas.limit_of("User:b", Quota.STREAMS) == 1_000
    assert quotas.limit_of("User:b", Quota.REQUESTS) is None


def test_what_is_changed_holds_for_those_who_are_here() -> None:
    quotas = Quotas()
    meter = quotas.meter(0.0, "User:a")
    assert quotas.meter(0.0, "User:a") is meter
    meter.charge(0.0, Quota.PRODUCE, 1 << 40)
    assert meter.delay(0.0, Quota.PRODUCE) == 0
    quotas.take(0.0, 1, {"User:a": {Quota.PRODUCE: 100}})
    meter.charge(0.0, Quota.PRODUCE, 1_100)
    assert meter.delay(0.0, Quota.PRODUCE) == pytest.approx(10)
    quotas.take(0.0, 2, {"User:a": {Quota.PRODUCE: 1_000}})
    assert meter.delay(0.0, Quota.PRODUCE) == pytest.approx(1)
    quotas.take(0.0, 3, {})
    assert meter.delay(0.0, Quota.PRODUCE) == 0


def test_a_connection_counts_once_however_many_calls_it_has() -> None:
    meter = Meter("User:a")
    meter.limit(0.0, {Quota.CONNECTIONS: 2})
    for _ in range(3):
        meter.connect("ipv4:1")
    meter.connect("ipv4:2")
    with pytest.raises(QuotaExceeded, match=r"has 2 connections.* allows 2.*tritonmq quota set User:a --connections 4"):
        meter.connect("ipv4:3")
    for _ in range(3):
        meter.disconnect("ipv4:1")
    meter.connect("ipv4:3")
    assert meter.connections == {"ipv4:2": 1, "ipv4:3": 1}


def test_meters_of_those_who_have_gone_are_dropped_and_no_others() -> None:
    quotas = Quotas()
    quotas.take(0.0, 1, {EVERYBODY: {Quota.FETCH: 1}})
    here = quotas.meter(0.0, "User:here")
    here.connect("ipv4:1")
    owes = quotas.meter(0.0, "User:owes")
    owes.charge(0.0, Quota.FETCH, 100)
    for number in range(10 * METERS_MIN):
        quotas.meter(0.0, f"User:{number}")
    assert len(quotas._meters) <= METERS_MIN + 2
    assert quotas.meter(0.0, "User:here") is here
    assert quotas.meter(0.0, "User:owes") is owes
    for number in range(10 * METERS_MIN):
        quotas.meter(200.0, f"User:{number}")
    assert quotas.meter(200.0, "User:owes") is not owes, "it has paid"
