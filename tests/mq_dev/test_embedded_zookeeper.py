"""The server that comes with pyspark: found, started, killed, brought back; and what is said when it cannot be."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mq_dev.embedded_zookeeper import EmbeddedZooKeeper, free_port, parse_ensemble
from mq_protocol.access.pem import Files, context, examine, files_of_broker, read
from mq_protocol.errors import CoordinationUnavailable, InvalidSetting
from tests.cluster.harness import wait_until
from tests.securing import Certs

pytestmark = pytest.mark.cluster


def test_it_starts_is_killed_and_starts_again_on_the_same_port(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    assert server.pid is None
    server.start()
    first, hosts = server.pid, server.hosts
    listening = [c.laddr.ip for c in psutil.Process(first).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert [ip.removeprefix("::ffff:") for ip in listening] == ["127.0.0.1"], "no admin server, no JMX"
    server.start()  # it runs: nothing to do
    assert server.pid == first
    server.kill()
    assert server.pid is None
    server.start()
    assert server.pid not in (None, first)
    assert server.hosts == hosts
    second = server.pid
    server.stop()
    server.stop()
    assert server.pid is None
    assert second is not None
    assert not psutil.pid_exists(second)


def test_no_port_is_given_to_two_processes_while_both_live() -> None:
    """A broker that was killed did not start again now and then: another process had been given its port meanwhile."""
    lines = [
        "from mq_dev.embedded_zookeeper import free_port",
        "print(*(free_port() for _ in range(1_000)), flush=True)",
    ]
    script = "\n".join([*lines, "input()"])
    asked = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    given: list[str] = []
    for process in asked:
        assert process.stdout is not None
        given += process.stdout.readline().split()
    for process in asked:
        process.communicate("\n", timeout=30)
    assert len(given) == len(set(given)) == 4_000


def test_a_port_that_is_taken_is_said_with_the_servers_own_words(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = EmbeddedZooKeeper(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(CoordinationUnavailable, match="Address already in use"):
            server.start()
        assert server.pid is None


def test_a_zookeeper_on_that_port_is_offered_instead(tmp_path: Path, zookeeper: str) -> None:
    server = EmbeddedZooKeeper(tmp_path, port=int(zookeeper.rpartition(":")[2]))
    with pytest.raises(CoordinationUnavailable, match=f"--zookeeper {zookeeper}"):
        server.start()


@pytest.mark.parametrize(("missing", "told"), [("java", r"install Java 17"), ("pyspark", r"\.\[spark\]")])
def test_without_what_it_needs_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, told: str
) -> None:
    if missing == "java":
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(CoordinationUnavailable, match=f"{told}.*--zookeeper HOST:PORT"):
        EmbeddedZooKeeper(tmp_path / "zk").start()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CoordinationUnavailable, match="--data"):
        EmbeddedZooKeeper(tmp_path / "file" / "zk").start()


def test_what_a_killed_owner_left_running_is_ended_and_what_a_live_one_has_is_not(tmp_path: Path) -> None:
    code = (
        "import sys, time; from mq_dev.embedded_zookeeper import EmbeddedZooKeeper;"
        f"s = EmbeddedZooKeeper({str(tmp_path)!r}, {free_port()}); s.start(); print(s.port, s.pid, flush=True); "
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        port, left = map(int, owner.stdout.readline().split())
        again = EmbeddedZooKeeper(tmp_path, port)
        with pytest.raises(CoordinationUnavailable, match="already listens"):
            again.start()
        assert psutil.pid_exists(left)
        owner.kill()
        owner.wait(10)
    again.start()
    try:
        assert again.pid not in (None, left)
    finally:
        again.stop()


def test_an_ensemble_is_written_as_ids_hosts_and_ports() -> None:
    found = parse_ensemble("1@a,2@b:1:2:3, 3@c")
    assert [(s.number, s.host, s.peer_port, s.election_port, s.client_address) for s in found] == [
        (1, "a", 2888, 3888, "a:2181"),
        (2, "b", 1, 2, "b:3"),
        (3, "c", 2888, 3888, "c:2181"),
    ]
    too_few, twice, no_id, two_ports, four_ports = (
        "1@a,2@b",
        "1@a,1@b,3@c",
        "1@a,2,3@c",
        "1@a,2@b:1:2,3@c",
        "1@a,2@b:1:1:2:4,3@c",
    )
    for wrong in (
        too_few,
        twice,
        no_id,
        two_ports,
        four_ports,
        "1@a,2@b:0:2:3,3@c",
        "1@a,2@b:5:5:3,3@c",
        "0@a,1@b,2@c",
    ):
        with pytest.raises(InvalidSetting):
            parse_ensemble(wrong)


def test_a_renewal_that_could_not_be_written_is_made_later_and_what_it_left_is_no_hindrance(tmp_path: Path) -> None:
    files = files_of_broker(Certs(tmp_path / "certs", 1).path, 1)
    server = EmbeddedZooKeeper(tmp_path / "zookeeper", tls=files)
    with pytest.raises(FileNotFoundError):  # as a full disk would
        server.renew()
    server.data_dir.mkdir()
    pair, authorities = server.data_dir / "zookeeper.pem", server.data_dir / "zookeeper-ca.pem"
    for path in (pair, authorities):
        path.with_suffix(".new").write_bytes(b"half of wh")  # of a broker that was killed meanwhile
    assert server.renew()
    assert pair.read_bytes() == files.key.read_bytes() + b"\n" + files.certificate.read_bytes()
    assert authorities.read_bytes() == files.ca.read_bytes()
    assert not server.renew()


def serial_shown(port: int, tls: Files) -> str:
    with (
        socket.create_connection(("127.0.0.1", port), 5.0) as plain,
        context(read(tls), server=False).wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        return str((secured.getpeercert() or {})["serialNumber"])


def answers(port: int, tls: Files) -> bool:
    """Whether the server speaks with whoever shows that certificate: it ends the connections of others."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 5.0) as plain,
        context(read(tls), server=False).wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        secured.sendall(b"srvr")
        return b"Mode:" in secured.recv(4096)
    return False


@pytest.mark.long
def test_servers_that_run_take_new_certificates_and_authorities_and_among_each_other_too(tmp_path: Path) -> None:
    former, new = Certs(tmp_path / "former", 1, 2, 3), Certs(tmp_path / "new", 1, 2, 3)
    old, young = ([files_of_broker(certs.path, n) for n in (1, 2, 3)] for certs in (former, new))
    here = [Files(*(tmp_path / f"{n}-{name}" for name in ("ca", "crt", "key"))) for n in (1, 2, 3)]
    for mine, theirs in zip(here, old, strict=True):
        for to, source in zip(mine.all, theirs.all, strict=True):
            shutil.copy(source, to)
    members = parse_ensemble(",".join(f"{n}@127.0.0.1:{free_port()}:{free_port()}:{free_port()}" for n in (1, 2, 3)))
    servers = [
        EmbeddedZooKeeper(tmp_path / str(member.number), number=member.number, ensemble=members, tls=tls)
        for member, tls in zip(members, here, strict=True)
    ]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.start()
        pids, ports = [server.pid for server in servers], [member.client_port for member in members]
        assert [server.renew() for server in servers] == [False] * 3
        assert not answers(ports[0], replace(young[0], ca=here[0].ca))

        for tls in here:
            tls.ca.write_bytes(former.ca + new.ca)
        assert [server.renew() for server in servers] == [True] * 3
        for port in ports:
            shown = replace(young[0], ca=here[0].ca)
            wait_until(lambda port=port, shown=shown: answers(port, shown), "the new authority is believed", 60)

        here[0].certificate.write_bytes(young[0].certificate.read_bytes())
        with pytest.raises(InvalidSetting, match="do not belong together"):
            servers[0].renew()
        for mine, theirs in zip(here, young, strict=True):
            mine.certificate.write_bytes(theirs.certificate.read_bytes())
            mine.key.write_bytes(theirs.key.read_bytes())
        assert [server.renew() for server in servers] == [True] * 3
        for port, theirs in zip(ports, young, strict=True):
            told = examine(read(theirs), server=True).serial
            wait_until(lambda port=port, told=told: serial_shown(port, here[0]) == told, "the new one is shown", 60)

        for tls in here:
            tls.ca.write_bytes(new.ca)
        assert [server.renew() for server in servers] == [True] * 3
        for port in ports:
            shown = replace(old[0], ca=here[0].ca)
            wait_until(lambda port=port, shown=shown: not answers(port, shown), "the former one is not believed", 60)
        assert [server.pid for server in servers] == pids
        servers[2].kill()
        servers[2].start()  # it joins the two that run since before, with new certificates alone
        assert answers(ports[2], young[0])
    finally:
        for server in servers:
            server.stop()
