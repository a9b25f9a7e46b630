"""The certificate of a broker: refused before anything is served, replaced while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_broker.rpc.wire.certificates import WARN_DAYS, Certificates
from mq_dev.certificates import write_broker
from mq_protocol.errors import InvalidSetting
from tests.coroutines import real_time
from tests.logs import said_here
from tests.securing import EXPIRED, NOT_YET, Certs


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path / "certs", 1)


def test_the_files_of_a_broker_are_found_in_its_directory_and_in_the_clusters(certs: Certs) -> None:
    assert Certificates(certs.path, 1).shown.uris == ("tritonmq://broker/1",)
    assert Certificates(certs.path / "broker.1", 1).shown.uris == ("tritonmq://broker/1",)
    with pytest.raises(InvalidSetting, match=r"broker\.crt"):
        Certificates(certs.path, 2)


def test_another_brokers_certificate_is_refused(certs: Certs) -> None:
    with pytest.raises(InvalidSetting, match="of Broker:1, not of broker 2"):
        Certificates(certs.path / "broker.1", 2)


def test_a_users_certificate_is_refused(certs: Certs) -> None:
    certs.authority.client("etl").write(certs.path / "broker.1", "broker")
    with pytest.raises(InvalidSetting, match="not made for this purpose"):
        Certificates(certs.path, 1)


@pytest.mark.parametrize(("when", "told"), [(EXPIRED, "has expired"), (NOT_YET, "not valid yet")])
def test_a_certificate_out_of_its_time_is_refused(certs: Certs, when: object, told: str) -> None:
    certs.authority.broker(1, ["127.0.0.1"], span=when).write(certs.path / "broker.1", "broker")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=told):
        Certificates(certs.path, 1)


def test_a_key_that_others_read_is_refused(certs: Certs) -> None:
    (certs.path / "broker.1" / "broker.key").chmod(0o644)
    with pytest.raises(InvalidSetting, match="chmod 600"):
        Certificates(certs.path, 1)


@real_time
async def test_a_new_pair_is_taken_and_a_bad_one_leaves_the_former(
    certs: Certs, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Certificates(certs.path, 1)
    first, directory = kept.shown.serial, certs.path / "broker.1"
    await kept.look()
    assert kept.generation == 1
    (directory / "broker.key").write_bytes(certs.authority.broker(1, ["h"]).key)
    await kept.look()
    assert (kept.generation, kept.shown.serial) == (1, first)
    assert "do not belong together" in caplog.text
    certs.authority.broker(1, ["127.0.0.1"], span=EXPIRED).write(directory, "broker")
    await kept.look()
    assert (kept.generation, kept.shown.serial) == (1, first)
    assert "has expired" in caplog.text
    certs.authority.broker(2, ["127.0.0.1"]).write(directory, "broker")
    await kept.look()
    assert kept.shown.serial == first
    write_broker(certs.authority, certs.path, 1, ["127.0.0.1"])
    await kept.look()
    assert kept.generation == 2
    assert kept.shown.serial != first
    (directory / "broker.crt").unlink()
    await kept.look()
    assert kept.generation == 2


def test_what_ends_soon_is_told_once_a_day(certs: Certs, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    kept = Certificates(certs.path, 1, lambda: now)
    now = kept.shown.not_after - (WARN_DAYS + 1) * 86_400
    kept._warn()
    assert not said_here(caplog)
    for _ in range(3):
        now += 86_400
        kept._warn()
        kept._warn()
    assert caplog.text.count("expires on") == 2
    now = kept.shown.not_after + 86_400
    kept._warn()
    assert "HAS EXPIRED" in caplog.text
