"""`tritonmq completion`: what is offered, how long brokers have, and that nothing is offered that a shell would run."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from mq_cli.commands import CommandGroup
from mq_cli.completion import VARIABLE, attach
from mq_cli.main import cli, run
from mq_client import Admin, Consumer
from tests.cluster.harness import wait_until
from tests.mq_broker.broker.cluster import standalone

HOSTILE = ("$(touch x)", "`x`", "a b", "a;b", "a|b", "é", "~root")


@pytest.fixture
def _completing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(CommandGroup, "when_found", [attach])
    yield
    cli.commands.clear()  # they are loaded again, without what completes


def offered(bootstrap: str, *words: str) -> list[str]:
    os.environ["TRITONMQ_BOOTSTRAP"] = bootstrap
    found = ShellComplete(cli, {}, "tritonmq", VARIABLE).get_completions(list(words[:-1]), words[-1])
    return [each.value for each in found if each.type == "plain"]


@pytest.mark.usefixtures("_completing")
def test_names_are_those_of_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONMQ_BOOTSTRAP", "")
    monkeypatch.setattr("mq_cli.completion.ASK_MS", 20_000)  # what is offered, and not how quickly

    def ask(address: str) -> None:
        with Admin(address) as admin:
            for name in ("flights", "frames", "other", *HOSTILE):
                admin.create_topic(name)
        with Consumer(address, group="readers", start="earliest", idle_ms=10) as consumer:
            consumer.subscribe("flights")
            assert list(consumer) == []
            consumer.stop()
        with Admin(address) as admin:
            wait_until(lambda: "readers" in admin.list_groups(), "the group's place is written down")
        assert offered(address, "topic", "describe", "f") == ["flights", "frames"]
        assert offered(address, "consume", "") == ["flights", "frames", "other"], "and none that a shell would run"
        assert offered("127.0.0.1:1", "consume", "--bootstrap", address, "o") == ["other"]
        assert offered(address, "cluster", "drain", "") == ["1"]
        assert offered(address, "group", "describe", "r") == ["readers"]
        assert offered(address, "queue", "declare", "flights", "r") == ["readers"]
        assert offered(address, "topic", "create", "f") == []
        assert offered(address, "storage", "show", "f") == []
        assert offered(address, "topic", "desc") == ["describe"]
        assert "--partitions" in offered(address, "topic", "create", "--part")

    async def scene() -> None:
        async with standalone(tmp_path) as broker:
            await asyncio.to_thread(ask, broker.address)

    asyncio.run(scene())


@pytest.mark.usefixtures("_completing")
def test_a_broker_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITONMQ_BOOTSTRAP", "")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert offered(f"127.0.0.1:{silent.getsockname()[1]}", "topic", "describe", "f") == []
    assert offered("127.0.0.1:1", "topic", "describe", "f") == []
    assert offered("no address", "topic", "describe", "f") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert f"{VARIABLE}={shell}_complete" in capfd.readouterr().out


@pytest.mark.processes
def test_bash_completes_by_the_script() -> None:
    script = (
        'eval "$(tritonmq completion bash)"; COMP_WORDS=(tritonmq top); COMP_CWORD=1; '
        '_tritonmq_completion tritonmq; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["topic", "top"], done.stderr
    assert done.stderr == ""
