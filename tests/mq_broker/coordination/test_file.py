"""What only a file can do to us: other processes, full disks, half-written documents."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from mq_broker.coordination import file as file_module
from mq_broker.coordination.file import FileStore
from mq_broker.coordination.interface import BrokerRegistration, TopicSpec
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.messages import CasOutcome
from mq_protocol.errors import CoordinationUnavailable, InternalError, InvalidRequest
from tests.coroutines import real_time
from tests.mq_broker.coordination.wire import Heard, id_of, state_of

TOPIC = TopicSpec("orders", id_of("1"), ((1,),))


@real_time
async def test_a_directory_has_one_process(tmp_path: Path) -> None:
    first, second = CoordinationService(FileStore(tmp_path)), CoordinationService(FileStore(tmp_path))
    await first.start(Heard())
    with pytest.raises(InvalidRequest, match=str(tmp_path)):
        await second.start(Heard())
    await first.stop()
    await second.start(Heard())
    await second.stop()


@real_time
async def test_a_second_broker_is_told_to_use_zookeeper(tmp_path: Path) -> None:
    service = CoordinationService(FileStore(tmp_path))
    await service.start(Heard())
    await service.register(BrokerRegistration(1, 1, "127.0.0.1:7400"))
    with pytest.raises(InvalidRequest, match="--zookeeper"):
        await service.register(BrokerRegistration(2, 1, "127.0.0.1:7401"))
    await service.stop()


@real_time
async def test_a_full_disk_is_unknown_and_what_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = CoordinationService(FileStore(tmp_path))
    await service.start(Heard())
    await service.create_topic(TOPIC, (state_of(),))
    # The draft cannot be written: a directory stands in its place, as good an OSError as a full disk's.
    (tmp_path / "coordination.json.new").mkdir()
    assert await service.write_state(id_of("1"), 0, 0, state_of(epoch=1)) == (CasOutcome.UNKNOWN, -1)
    with pytest.raises(CoordinationUnavailable, match=r"coordination\.json"):
        await service.begin_life(1)
    assert await service.read_state(id_of("1"), 0) == (0, state_of())
    (tmp_path / "coordination.json.new").rmdir()
    assert await service.write_state(id_of("1"), 0, 0, state_of(epoch=1)) == (CasOutcome.DONE, 1)
    await service.stop()


@real_time
async def test_a_crash_while_writing_leaves_the_document_before(tmp_path: Path) -> None:
    service = CoordinationService(FileStore(tmp_path))
    await service.start(Heard())
    await service.create_topic(TOPIC, (state_of(),))
    await service.stop()
    (tmp_path / "coordination.json.new").write_bytes((tmp_path / "coordination.json").read_bytes()[:40])
    again = CoordinationService(FileStore(tmp_path))
    await again.start(Heard())
    assert await again.topics() == {"orders": TOPIC}
    await again.stop()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"cluster_id": "x"}'])
def test_a_damaged_document_is_named_and_not_taken_for_an_empty_one(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "coordination.json").write_bytes(damage)
    service = CoordinationService(FileStore(tmp_path))
    with pytest.raises(InternalError, match=r"coordination\.json"):
        asyncio.run(service.start(Heard()))
    assert (tmp_path / "coordination.json").read_bytes() == damage


@real_time
async def test_the_document_is_on_disk_when_the_answer_comes(tmp_path: Path) -> None:
    service = CoordinationService(FileStore(tmp_path))
    await service.start(Heard())
    begun = await service.begin_life(4)
    stored = json.loads((tmp_path / "coordination.json").read_text())
    assert stored["nodes"]["brokers/lives/4"][0] == begun
    await service.stop()


@real_time
async def test_a_write_that_outlives_its_process_keeps_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, go_on = file_module._store, threading.Event()

    def held(*document: object) -> None:
        assert go_on.wait(20.0)
        store(*document)  # type: ignore[arg-type]

    service = CoordinationService(FileStore(tmp_path))
    await service.start(Heard())
    monkeypatch.setattr(file_module, "_store", held)
    monkeypatch.setattr(file_module, "WRITE_TIMEOUT_S", 0.05)
    with pytest.raises(CoordinationUnavailable):
        await service.begin_life(1)
    await service.stop()
    with pytest.raises(InvalidRequest, match="another process"):
        await CoordinationService(FileStore(tmp_path)).start(Heard())
    go_on.set()


def test_a_document_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "coordination.json"

    async def written() -> None:
        service = CoordinationService(FileStore(tmp_path))
        await service.start(Heard())
        await service.cluster_id()
        await service.stop()

    asyncio.run(written())
    newer = json.dumps({**json.loads(path.read_text()), "format": 2})
    path.write_text(newer)
    with pytest.raises(InternalError, match="is of format 2, and this version reads format 1"):
        asyncio.run(CoordinationService(FileStore(tmp_path)).start(Heard()))
    assert path.read_text() == newer
