"""A broker that said when it wants to be asked again is not asked before."""

from __future__ import annotations

import time

import pytest

from mq_client.cluster.connection import HeldBack
from mq_client.cluster.deadline import Deadline
from mq_client.errors import Overloaded
from mq_protocol.wire.error_messages import from_wire, to_wire


def test_the_time_goes_over_the_wire() -> None:
    told = from_wire(to_wire(Overloaded("slow down", 1_500)))
    assert isinstance(told, Overloaded)
    assert told.retry_after_ms == 1_500


def test_the_next_question_waits_for_that_broker_alone() -> None:
    held = HeldBack()
    held.note("a:1", Overloaded("slow down", 60_000))
    assert held.is_now("a:1")
    assert not held.is_now("b:1")
    held.wait("b:1", Deadline(0))
    began = time.monotonic()
    held.note("c:1", Overloaded("slow down", 150))
    held.wait("c:1", Deadline(30_000))
    assert time.monotonic() - began >= 0.149
    assert not held.is_now("c:1")
    held.wait("c:1", Deadline(0))


def test_a_deadline_that_comes_first_is_kept_and_the_reason_told() -> None:
    held = HeldBack()
    held.note("a:1", Overloaded("slow down", 60_000))
    began = time.monotonic()
    with pytest.raises(Overloaded, match="slow down"):
        held.wait("a:1", Deadline(100))
    assert time.monotonic() - began >= 0.09


def test_a_broker_that_named_no_time_may_be_asked_at_once() -> None:
    held = HeldBack()
    held.note("a:1", Overloaded("slow down"))
    held.wait("a:1", Deadline(10))
