"""In which order a broker leaves and ends, and that each of its parts ends: stand-ins note what they are told."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker import BrokerConfig, serve, server
from mq_broker.coordination.file import FileCoordination
from mq_protocol.errors import CoordinationUnavailable, StorageFailed


class Parts:
    """What a broker consists of. `told` has the calls in their order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.waits: list[float] = []
        broker: Any = SimpleNamespace(
            _shell=SimpleNamespace(
                broker=1,
                stop=lambda: self.told.append("work"),
                hand_over=self.noting("hand over"),
                close=self.noting("journals"),
            ),
            _coordination=SimpleNamespace(stop=self.noting("session")),
            _stamps=SimpleNamespace(last=self.noting("last stamp")),
            _systemd=SimpleNamespace(tell=self.told.append),
            _ports=SimpleNamespace(stop=self.noting("ports")),
            _log_levels=SimpleNamespace(close=lambda: self.told.append("log levels")),
            _judging=SimpleNamespace(audit=SimpleNamespace(stop=lambda: self.told.append("audit log"))),
            _links=SimpleNamespace(flush=self.noting("flush links"), close=self.noting("links")),
            _forwarding=SimpleNamespace(close=self.noting("forwarded calls")),
            _calls=SimpleNamespace(close=self.noting("calls")),
            _observing=SimpleNamespace(state="serving"),
            _producing=SimpleNamespace(close=lambda: self.told.append("checking threads")),
            _reading=SimpleNamespace(close=lambda: self.told.append("filtering threads")),
            _keys=SimpleNamespace(close=lambda: self.told.append("reading keys")),
            _filters=SimpleNamespace(close=lambda: self.told.append("comparing rows")),
        )
        self.broker = broker

    def noting(self, what: str) -> Any:
        async def noted(*arguments: Any) -> None:
            await asyncio.sleep(0)
            self.told.append(what)
            self.waits += [each for each in arguments if isinstance(each, float)]

        return noted


def test_a_broker_that_leaves_hands_over_and_waits_until_the_others_have_been_told() -> None:
    parts = Parts()
    asyncio.run(server._Broker.leave(parts.broker, 7.5))
    assert parts.told == ["STOPPING=1", "hand over", "flush links", "last stamp"]
    assert parts.waits == [7.5, server.FLUSH_TIMEOUT_S]
    assert parts.broker._observing.state == "draining"


def test_a_broker_ends_its_work_then_its_session_and_its_journals_once_nobody_asks_any_more() -> None:
    parts = Parts()
    asyncio.run(server._Broker.close(parts.broker))
    assert parts.told == [
        *("work", "session", "links", "ports", "journals", "forwarded calls", "calls", "log levels"),
        *("checking threads", "filtering threads", "reading keys", "comparing rows", "audit log"),
    ]


def test_a_broker_that_cannot_join_its_cluster_ends_its_session(tmp_path: Path) -> None:
    ended: list[bool] = []

    class Unread(FileCoordination):
        async def cluster_id(self) -> str:
            raise CoordinationUnavailable("cannot be read")

        async def stop(self) -> None:
            ended.append(True)
            await super().stop()

    config = BrokerConfig(1, "127.0.0.1:0", tmp_path, coordination=lambda: Unread(tmp_path))
    with pytest.raises(CoordinationUnavailable, match="cannot be read"):
        asyncio.run(serve(config, stop=asyncio.Event()))
    assert ended == [True]


def test_a_broker_whose_start_fails_leaves_neither_a_thread_nor_its_directory_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())

    async def fails(_self: server._Broker) -> None:
        assert any("writer" in thread.name for thread in set(threading.enumerate()) - before)
        raise StorageFailed("the disk is gone")

    monkeypatch.setattr(server._Broker, "start", fails)
    for _ in range(2):
        with pytest.raises(StorageFailed, match="the disk is gone"):
            asyncio.run(serve(BrokerConfig(1, "127.0.0.1:0", tmp_path), stop=asyncio.Event()))
    assert not any("writer" in thread.name for thread in set(threading.enumerate()) - before)
