"""The ZooKeeper of `--zookeeper embedded` is looked after as long as its broker runs."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from mq_cli.machines.broker import coordination
from mq_dev.embedded_zookeeper import free_port
from mq_protocol.access.pem import files_of_broker
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
