"""The ceilings do what they say: every message arrives and is answered, by as many processes as they name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.bench.ceilings import GrpcCeiling, write_and_sync
from benchmarks.bench.measure import Schedule

MESSAGES = [bytes(1_000), bytes(2_000)]


@pytest.fixture(scope="module")
def ceiling() -> Iterator[GrpcCeiling]:
    running = GrpcCeiling()
    yield running
    running.close()


def test_every_message_is_answered(ceiling: GrpcCeiling) -> None:
    assert ceiling.move(MESSAGES, 50) > 0


def test_every_relayed_message_is_answered_once_both_followers_have(ceiling: GrpcCeiling) -> None:
    assert ceiling.relay(MESSAGES, 50) > 0


def test_every_echo_is_counted_from_when_it_was_due(ceiling: GrpcCeiling) -> None:
    """Messages that were due a second ago are a second late, however fast the echo is."""
    latencies = ceiling.echo(Schedule(time.time_ns() - 1_000_000_000, 1e9, 20), 100, time.time_ns)
    assert len(latencies) == 20
    assert min(latencies) >= 999


def test_the_disk_is_left_as_it_was(tmp_path: Path) -> None:
    assert write_and_sync(tmp_path / "file", MESSAGES, 3) > 0
    assert list(tmp_path.iterdir()) == []
