"""Deadlines shrink and never grow; waits between attempts grow and stay bounded."""

from __future__ import annotations

import math
import random
import threading

import pytest

from mq_client.cluster.deadline import Backoff, Deadline, positive_ms
from mq_client.errors import InvalidSetting


def test_a_deadline_within_another_is_never_later() -> None:
    deadline = Deadline(1_000)
    assert deadline.at_most(10_000).remaining_s <= 1.0
    assert deadline.at_most(10).remaining_s <= 0.01
    assert not deadline.expired


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


def test_two_clients_do_not_wait_alike() -> None:
    assert [Backoff(random.Random(1)).next_ms()] != [Backoff(random.Random(2)).next_ms()]


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_timeout_must_be_positive(value: float) -> None:
    with pytest.raises(InvalidSetting, match="linger_ms"):
        positive_ms("linger_ms", value)


def test_for_ever_is_what_can_be_waited_for() -> None:
    changed = threading.Condition()
    with changed, pytest.raises(OverflowError):
        changed.wait(math.inf)
    waiting = Deadline(positive_ms("timeout_ms", math.inf)).remaining_s
    assert threading.TIMEOUT_MAX > waiting > 365 * 86_400
    with pytest.raises(InvalidSetting):
        positive_ms("timeout_ms", math.nan)
