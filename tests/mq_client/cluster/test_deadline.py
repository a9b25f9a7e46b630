"""Deadlines shrink and never grow; waits between attempts grow and stay bounded."""

from __future__ import annotations

import math
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from mq_client.cluster.deadline import Backoff, Deadline, attempts, positive_ms
from mq_client.errors import InvalidSetting
from tests.mq_client.cluster.scripted import Clock


def test_a_deadline_within_another_is_never_later() -> None:
    deadline = Deadline(1_000)
    assert deadline.at_most(10_000).remaining_s <= 1.0
    assert deadline.at_most(10).remaining_s <= 0.01
    assert not deadline.expired


def test_errors_tell_the_time_that_was_asked_for_not_what_was_left_of_it() -> None:
    assert Deadline(1_000.0001).at_most(10_000).timeout_ms == 1_000.0001
    assert Deadline(10_000).at_most(1_000).timeout_ms == 1_000


def test_a_deadline_that_is_past_leaves_nothing() -> None:
    deadline = Deadline(0)
    assert deadline.expired
    assert deadline.remaining_s == 0
    Backoff().sleep(deadline)


def test_waits_double_up_to_half_a_second_each_cut_by_at_most_half() -> None:
    backoff = Backoff(random.Random(1))
    waits = [backoff.next_ms() for _ in range(10)]
    for wait, most in zip(waits, (20, 40, 80, 160, 320, 500, 500, 500, 500, 500), strict=True):
        assert most / 2 <= wait <= most
    backoff.reset()
    assert backoff.next_ms() <= 20


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_timeout_must_be_positive(value: float) -> None:
    with pytest.raises(InvalidSetting, match="linger_ms"):
        positive_ms("linger_ms", value)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("5m", "timeout_ms='5m' is no number: give milliseconds as a number: timeout_ms=300000"),
        ("250", "timeout_ms='250' is no number: give milliseconds as a number: timeout_ms=250"),
        ("soon", "timeout_ms='soon' is no number: give milliseconds as a number, such as 5000"),
        (True, "timeout_ms=True is no number"),
        (None, "timeout_ms=None is no number"),
    ],
)
def test_a_time_that_is_no_number_is_refused_with_the_number_that_was_meant(value: Any, told: str) -> None:
    with pytest.raises(InvalidSetting, match=f"^{told}"):
        positive_ms("timeout_ms", value)


def test_for_ever_is_what_can_be_waited_for() -> None:
    changed = threading.Condition()
    with changed, pytest.raises(OverflowError):
        changed.wait(math.inf)
    waiting = Deadline(positive_ms("timeout_ms", math.inf)).remaining_s
    assert threading.TIMEOUT_MAX > waiting > 365 * 86_400
    with pytest.raises(InvalidSetting):
        positive_ms("timeout_ms", math.nan)


def test_a_timeout_may_be_a_part_of_a_millisecond() -> None:
    assert positive_ms("timeout_ms", 0.5) == 0.5


def test_a_wait_takes_as_long_as_it_says_but_not_past_the_deadline(clock: Clock) -> None:
    always_longest: Any = SimpleNamespace(random=lambda: 1.0)
    backoff, deadline = Backoff(always_longest), Deadline(50)
    backoff.sleep(deadline)
    backoff.sleep(deadline)
    deadline.pause(1)
    assert clock.slept == pytest.approx([0.02, 0.03, 0.0])
    Deadline(500).pause(0.2)
    assert clock.slept[-1] == pytest.approx(0.2)


def test_attempts_go_on_until_one_is_over_after_the_deadline(clock: Clock) -> None:
    deadline = Deadline(100)
    made = []
    for attempt in attempts(deadline):
        made.append(attempt)
        clock.now += 0.01
    assert made == list(range(len(clock.slept) + 1))
    assert 0.01 <= clock.slept[0] <= 0.02
    assert clock.now == pytest.approx(1_000.0 + 0.1 + 0.01), "the last wait ends at the deadline, one attempt follows"


def test_one_attempt_is_made_though_the_deadline_has_passed(clock: Clock) -> None:
    assert list(attempts(Deadline(0))) == [0]
    assert clock.slept == []
