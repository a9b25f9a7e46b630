"""A broker goes on from checkpoints, and what it did not read at its start is verified meanwhile."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker import server
from mq_broker.broker.config import BrokerConfig
from mq_broker.broker.host.shell import Shell
from mq_broker.storage.journal import keeping, recovery
from mq_protocol.errors import TritonMQError
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.test_three_brokers import three
from tests.often import look_every
from tests.virtual.world import in_virtual_time

SETTINGS = {"segment_bytes_max": "1MiB"}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint as soon as there is something new."""
    monkeypatch.setattr(keeping, "CHECKPOINT_COST", 1)
    monkeypatch.setattr(keeping, "GROWTH", 0)
    look_every(monkeypatch, checkpoints=0.05)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Indexes of the entries that recovery reads."""
    found: list[int] = []
    frames_in = recovery.frames_in

    def counting(*args: Any) -> Iterator[Any]:
        for entry, end in frames_in(*args):
            found.append(entry.index)
            yield entry, end

    monkeypatch.setattr(recovery, "frames_in", counting)
    return found


def partition_path(data: Path, topic: str = "t") -> Path:
    [path] = [
        each.parent for each in data.glob("partitions/*/log.json") if json.loads(each.read_text())["topic"] == topic
    ]
    return path


async def _leads(broker: Broker) -> bool:
    try:
        return await broker.end("t") >= 0
    except TritonMQError:
        return False


@virtual_time
async def test_what_was_stored_when_a_broker_stopped_cleanly_is_not_read_at_its_next_start(
    tmp_path: Path, read: list[int]
) -> None:
    first = uuid.uuid4().bytes
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", **SETTINGS)
        await broker.produce("t", 0, uuid=first)
        for number in range(1, 40):
            await broker.produce("t", number)
    read.clear()
    async with standalone(tmp_path, scrub_rate=0) as broker:
        await until(lambda: _leads(broker))
        assert read == []
        assert await broker.numbers("t") == list(range(40))
        again = await broker.produce("t", 0, uuid=first)
        assert (again.duplicate, again.base_offset) == (True, 0)
        assert (await broker.produce("t", 40)).base_offset == 40
        assert await broker.end("t") == 41


@virtual_time
async def test_a_running_broker_stores_checkpoints_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "WORTH_COST", 1 << 40)  # none at the stop
    monkeypatch.setattr(keeping, "CHECKPOINT_COST", 5_000)
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", **SETTINGS)
        for number in range(40):
            await broker.produce("t", number)

        async def stored() -> bool:
            return (partition_path(tmp_path) / "checkpoint").exists()

        await until(stored)


def test_a_broker_that_something_went_wrong_in_stores_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_every(monkeypatch, checkpoints=3600.0)
    shells: list[Shell] = []

    class Known(Shell):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            shells.append(self)

    monkeypatch.setattr(server, "Shell", Known)

    async def scenario() -> None:
        broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path)).start()
        await broker.create_topic("t", **SETTINGS)
        for number in range(40):
            await broker.produce("t", number)
        shells[0].fail(RuntimeError("an invariant is broken"))
        assert broker._task is not None
        with pytest.raises(RuntimeError, match="invariant"):
            await broker._task
        broker._task = None
        await broker.stop()
        assert not (partition_path(tmp_path) / "checkpoint").exists()

    in_virtual_time(scenario())


def damage(path: Path) -> None:
    """In the middle of the first segment."""
    segment = sorted(path.glob("*.log"))[0]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)


@pytest.mark.parametrize("how", ["scrub", "read"])
@virtual_time
async def test_damage_that_a_start_did_not_see_is_put_aside_once_it_is_found(tmp_path: Path, how: str) -> None:
    """A single broker: what is behind is lost to readers, as it is where the start finds it."""
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", **SETTINGS)
        for number in range(400):
            await broker.produce("t", number)
    path = partition_path(tmp_path)
    damage(path)
    name = json.loads((path / "log.json").read_text())["log_id"]
    async with standalone(tmp_path, scrub_rate=(32 << 20) if how == "scrub" else 0) as broker:
        broker.asks_again = False

        async def renewed() -> bool:
            if how == "read":
                with contextlib.suppress(TritonMQError):
                    await broker.numbers("t")
            return (path / "aside-1" / "why.txt").exists()

        await until(renewed)
        assert json.loads((path / "log.json").read_text())["log_id"] != name


@pytest.mark.parametrize("hurt", [1, 2], ids=["first", "second"])
@virtual_time
async def test_damage_that_a_start_did_not_see_is_repaired_from_another_broker(tmp_path: Path, hurt: int) -> None:
    async with three(tmp_path, scrub_rate=32 << 20) as cluster:
        await cluster[1].create_topic("t", replicas=3, **SETTINGS)
        leader = await cluster.leader("t", at=1)
        for number in range(300):
            await cluster[leader].produce("t", number)

        async def all_have_it() -> bool:
            ends = [sum(p.stat().st_size for p in partition_path(tmp_path / str(n)).glob("*.log")) for n in (1, 2, 3)]
            return len(set(ends)) == 1

        await until(all_have_it)
        await cluster[hurt].stop()
        path = partition_path(tmp_path / str(hurt))
        assert (path / "checkpoint").exists()
        damage(path)
        await cluster[hurt].start()

        async def repaired() -> bool:
            if not (path / "aside-1" / "why.txt").exists():
                return False
            other = partition_path(tmp_path / "3")
            try:
                mine, theirs = (b"".join(p.read_bytes() for p in sorted(d.glob("*.log"))) for d in (path, other))
            except FileNotFoundError:  # it is just being put aside
                return False
            return mine == theirs

        await until(repaired)
        leader = await cluster.leader("t", at=3)
        assert await cluster[leader].numbers("t") == list(range(300))
