"""Who fails often waits, and what is kept of strangers has a bound."""

from __future__ import annotations

from mq_broker.security.failures import ADDRESSES_MAX, DELAY_S, FAILURES, WITHIN_S, Failures, host_of


def test_the_eleventh_failure_within_ten_seconds_waits_and_so_does_each_after_it() -> None:
    failures = Failures()
    assert [failures.delay("a", 0.1 * n) for n in range(FAILURES)] == [0.0] * FAILURES
    assert failures.delay("a", 2.0) == DELAY_S
    assert failures.delay("a", 3.0) == DELAY_S
    assert failures.delay("b", 3.0) == 0.0


def test_failures_further_apart_do_not_wait() -> None:
    failures = Failures()
    assert {failures.delay("a", n * WITHIN_S / FAILURES) for n in range(100)} == {0.0}


def test_once_it_has_been_quiet_for_long_enough_nobody_waits() -> None:
    failures = Failures()
    assert [failures.delay("a", 0.0) for _ in range(FAILURES + 1)][-1] == DELAY_S
    assert failures.delay("a", WITHIN_S) == 0.0


def test_of_many_addresses_the_one_that_is_quiet_for_longest_is_forgotten() -> None:
    failures = Failures()
    for number in range(3 * ADDRESSES_MAX):
        failures.delay("always", 0.0)
        failures.delay(str(number), 0.0)
    assert len(failures) == ADDRESSES_MAX
    assert failures.delay("always", 0.0) == DELAY_S


def test_the_port_of_the_far_end_does_not_count() -> None:
    assert host_of("ipv4:127.0.0.1:40000") == host_of("ipv4:127.0.0.1:40001")
    assert host_of("ipv6:%5B::1%5D:40000") == "ipv6:%5B::1%5D"
