"""`tritonmq bench`: figures that agree with what was done, and no topic left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mq_cli.main import REFUSED, run
from mq_cli.records.bench import Samples
from mq_client import Admin
from tests.mq_broker.broker.cluster import standalone


def test_percentiles_are_those_of_all_while_all_are_kept() -> None:
    samples = Samples()
    for number in range(1, 1001):
        samples.add(number / 1000)
    told = samples.milliseconds()
    assert told["p50"] == pytest.approx(500.5)
    assert told["p99"] == pytest.approx(np.percentile(range(1, 1001), 99))
    assert told["max"] == 1000
    assert Samples().milliseconds() == {}


def test_of_too_many_durations_some_are_kept_and_the_longest_always() -> None:
    samples = Samples(samples_max=100)
    for number in range(100_000):
        samples.add(9.0 if number == 77 else number % 1000 / 1000)
    assert samples.count == 100_000
    told = samples.milliseconds()
    assert told["max"] == 9000
    assert told["p50"] == pytest.approx(500, abs=150)


def told(capfd: pytest.CaptureFixture[str], status: int = 0, *words: str) -> dict[str, Any]:
    assert run(["bench", *words, "--json", "--durability", "os"]) == status
    out: dict[str, Any] = json.loads(capfd.readouterr().out) if status == 0 else {}
    return out


def test_each_of_them_measures_and_leaves_no_topic(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def ask(address: str) -> None:
        to = ("--bootstrap", address)
        produced = told(capfd, 0, "produce", "--seconds", "0.5", "--rate", "200", *to)
        assert produced["records"] == 100
        assert 0 < produced["latency_ms"]["p50"] <= produced["latency_ms"]["max"]
        consumed = told(capfd, 0, "consume", "--records", "12000", "--size", "50", *to)
        assert (consumed["records"], consumed["record_bytes"], consumed["latency_ms"]) == (12_000, 50, {})
        assert consumed["records_per_second"] == pytest.approx(12_000 / consumed["seconds"], rel=0.05)
        late = told(capfd, 0, "latency", "--seconds", "0.5", "--rate", "100", *to)
        assert late["records"] == 50
        assert late["latency_ms"]["p99"] > 0
        told(capfd, REFUSED, "latency", "--replicas", "2", *to)
        with Admin(address) as admin:
            assert admin.list_topics() == []

    asyncio.run(_with_broker(tmp_path, ask))


async def _with_broker(path: Path, ask: Callable[[str], None]) -> None:
    async with standalone(path) as broker:
        await asyncio.to_thread(ask, broker.address)
