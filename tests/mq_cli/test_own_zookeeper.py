"""The ZooKeeper of `--zookeeper embedded` is looked after as long as its broker runs."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mq_cli import own_zookeeper
from mq_cli.own_zookeeper import coordination
from mq_dev.embedded_zookeeper import free_port
from mq_protocol.errors import InvalidSetting
from mq_protocol.pem import files_of_broker
from tests.securing import HOST, Certs

pytestmark = pytest.mark.cluster


def test_it_is_given_a_certificate_that_is_replaced_and_none_that_is_of_no_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certs = Certs(tmp_path / "certs", 1)
    files = files_of_broker(certs.path, 1)
    pair = tmp_path / "data" / "zookeeper" / "zookeeper.pem"

    def told(words: str) -> None:
        deadline = time.monotonic() + 30
        while words not in caplog.text:
            assert time.monotonic() < deadline, words
            time.sleep(0.05)

    with (
        caplog.at_level(logging.INFO, "mq_cli.broker"),
        coordination(f"embedded:{free_port()}", tmp_path / "data", 1, files),
    ):
        key, former = files.key.read_bytes(), pair.read_bytes()
        files.key.write_bytes(b"")
        told("goes on with its former certificate and authorities")
        assert pair.read_bytes() == former
        files.key.write_bytes(key)
        told("takes the new certificate and authorities")
        caplog.clear()
        certs.authority.broker(1, [HOST], 30).write(files.key.parent, "broker")
        told("takes the new certificate and authorities")
        assert pair.read_bytes() == files.key.read_bytes() + b"\n" + files.certificate.read_bytes()


class Faulty:
    """A server that has ended. `faults`: what becomes of each attempt to start it, and to give it certificates."""

    host, port, log_path, pid = HOST, 2181, Path("zookeeper.log"), None

    def __init__(self, *faults: Exception | None) -> None:
        self.over = threading.Event()
        self.launched = 0
        self._launches, self._renewals = list(faults), list(faults)

    def launch(self) -> None:
        self.launched += 1
        if (fault := self._launches.pop(0)) is not None:
            raise fault

    def renew(self) -> bool:
        fault = self._renewals.pop(0)
        if not self._renewals:
            self.over.set()
        if fault is not None:
            raise fault
        return True


def test_it_is_looked_after_whatever_goes_wrong_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(own_zookeeper, "_LOOK_AT_ZOOKEEPER_S", 0.0)
    full = OSError("no space left on device")
    server: Any = Faulty(full, full, InvalidSetting("no key"), None)
    with caplog.at_level(logging.INFO, "mq_cli.broker"):
        own_zookeeper._keep(server, server.over, restarted=True)
    assert server.launched == 4
    told = [each.message for each in caplog.records if "certificate" in each.message]
    former = "ZooKeeper goes on with its former certificate and authorities: "
    assert told == [
        f"{former}no space left on device",
        f"{former}no key",
        f"ZooKeeper on {HOST}:2181 takes the new certificate and authorities",
    ]
