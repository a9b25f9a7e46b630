"""`tritonmq console`: where it serves, whom it lets in, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from mq_cli.machines import console
from mq_dev.certificates import make_missing
from mq_protocol.access.pem import files_of_broker
from tests.mq_cli.processes import Command, tritonmq

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--listen", "0.0.0.0:0"), b"can be reached from other machines"),
        (("--listen", "[::]:0"), b"can be reached from other machines"),
        (("--listen", "nonsense"), b"is not HOST:PORT"),
        (("--https-key", __file__), b"go together"),
        (("--actions", "--open-to-all"), b"--actions needs a key"),
        (("--listen", "127.0.0.1:0", "--bootstrap", "nonsense"), b"nonsense"),
    ],
)
def test_what_makes_no_sense_is_refused(options: tuple[str, ...], said: bytes) -> None:
    outcome = tritonmq("console", *options)
    assert outcome.returncode == 2
    assert said in outcome.stderr


def test_a_short_key_and_a_port_that_is_taken_are_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short\n")
    outcome = tritonmq("console", "--listen", "127.0.0.1:0", "--key-file", str(tmp_path / "key"))
    assert (outcome.returncode, b"at least 16" in outcome.stderr) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = tritonmq("console", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--bootstrap", NOWHERE)
    assert (outcome.returncode, b"cannot listen on" in outcome.stderr) == (1, True)


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("no", name="starlette.routing")

    monkeypatch.setattr(console, "import_module", lambda _name: missing())
    outcome = tritonmq("console")
    assert (outcome.returncode, b"pip install '.[console]'" in outcome.stderr) == (1, True)


@pytest.mark.processes
def test_it_says_where_it_is_and_without_a_cluster_it_says_so_and_it_asks_for_the_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a-key-of-my-own-1\n")
    words = ["--listen", "127.0.0.1:0", "--bootstrap", NOWHERE, "--key-file", str(tmp_path / "key"), "--stop-at-eof"]
    with Command("console", *words, stdin=subprocess.PIPE) as command:
        address = command.line().removeprefix("console ")
        assert address.startswith("http://127.0.0.1:")
        assert "a-key" not in address
        with httpx.Client(base_url=address, trust_env=False, timeout=30) as client:
            assert client.get("/").status_code == 403
            assert client.get("/?key=a-key-of-my-own-1").status_code == 303
            page = client.get("/")
            assert page.status_code == 200
            assert "The cluster does not answer" in page.text
            told = client.get("/api/v1/topics").json()
            assert (told["rows"], bool(told["fault"])) == ([], True)
        assert command.process.stdin is not None
        command.process.stdin.close()
        command.process.stdin = None
        assert command.process.wait(30) == 0


@pytest.mark.processes
def test_with_actions_the_printed_address_has_a_new_key_and_ctrl_c_ends_it() -> None:
    with Command("console", "--listen", "127.0.0.1:0", "--bootstrap", NOWHERE, "--actions") as command:
        address = command.line().removeprefix("console ")
        assert httpx.get(address.partition("?")[0], trust_env=False).status_code == 403
        assert httpx.get(address, trust_env=False).status_code == 303
        assert command.end(signal.SIGINT) == 0
    assert not os.path.exists(f"/proc/{command.pid}")


@pytest.mark.processes
def test_over_https_and_with_a_key_since_the_cluster_asks_for_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs = tmp_path / "certs"
    make_missing(certs, "127.0.0.1", [1])
    files = files_of_broker(certs, 1)
    monkeypatch.setenv("TRITONMQ_CERTS", str(certs))
    words = ["--https-certificate", str(files.certificate), "--https-key", str(files.key)]
    with Command("console", "--listen", "127.0.0.1:0", "--bootstrap", NOWHERE, *words) as command:
        address = command.line().removeprefix("console ")
        assert address.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(certs / "ca.crt"))
        answer = httpx.get(address, verify=trusting, trust_env=False)
        assert (answer.status_code, "; Secure" in answer.headers["set-cookie"]) == (303, True)
        assert command.end() == 0
