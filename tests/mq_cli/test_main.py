"""The command itself: what it says, and with which code it ends. Nothing here needs a broker."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mq_cli.main import MISUSED, REFUSED, run
from tests.mq_cli.processes import Command, tritonmq


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    script = (
        "import sys; from mq_cli.main import run; code = run(['--help']); "
        "print(json.dumps([code, [m for m in ('pyarrow', 'grpc', 'kazoo') if m in sys.modules]]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", "import json; " + script], capture_output=True, text=True, check=True, timeout=60
    )
    *text, last = result.stdout.splitlines()
    assert json.loads(last) == [0, []]
    for command in ("dev", "broker", "topic", "partition", "produce", "consume", "cluster", "group"):
        assert any(line.strip().startswith(command) for line in text)


@pytest.mark.parametrize(
    "command",
    [
        "dev",
        "broker",
        "topic",
        "topic create",
        "topic alter",
        "partition describe",
        "partition move",
        "partition lead",
        "partition recover",
        "produce",
        "consume",
        "cluster status",
        "cluster balance",
        "cluster drain",
        "cluster moves",
        "group list",
        "group reset",
        "group delete",
        "group peek",
        "topic purge",
        "lock",
        "config show",
        "doctor",
        "top",
        "storage verify",
        "storage export",
    ],
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    assert f"Usage: tritonmq {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        ("prodcue t", "produce"),
        ("topic crate t", "create"),
        ("cluster stauts", "status"),
        ("cluster dran 2", "drain"),
        ("partition mvoe t 0 --to 1", "move"),
        ("partition move t 0", "--to"),
        ("partition move t 0 --to one", "1,2,4"),
        ("partition move t 0 --to 1 --cancel", "--cancel"),
        ("partition lead t 0", "BROKER"),
        ("topic alter t", "--partitions"),
        ("topic alter t --set durability", "NAME=VALUE"),
        ("topic alter t --add-column 'a lnog'", "long"),
        ("topic create t --partitons 3", "--partitions"),
        ("topic create t --set durabilty=os", "durability"),
        ("topic create t --set durability=fsnc", "fsync"),
        ("topic create t --schema 'a lnog'", "long"),
        ("broker --id 1 --standallone", "--standalone"),
        ("consume t --from erliest", "earliest"),
        ("consume t --tail 3 --from earliest", "give one of them"),
        ("produce t --csv -K :", "give one"),
        ("produce t --columns a", "--csv"),
        ("produce t --header a", "NAME=VALUE"),
        ("produce t --timestamp yesterday", "15m"),
        ("group reset g t", "--to earliest|latest|OFFSET|TIME"),
        ("group reset g t --to latest --by 3", "--by"),
        ("group reset g t --to lastest", "latest"),
        ("group delet g", "delete"),
        ("topic purge t --before earliest", "neither an offset nor a time"),
        ("dev --broker 3", "--brokers"),
        ("storage verfiy --data .", "verify"),
        ("storage verify --data . --partition 1", "--topic"),
    ],
)
def test_a_wrong_word_is_misuse_and_the_nearest_right_one_is_named(
    line: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shlex.split(line)) == MISUSED
    said = capsys.readouterr()
    assert nearest in said.err.partition("Error: ")[2]
    assert said.out == ""


@pytest.mark.parametrize(
    "line",
    [
        "topic create t --partitions 0",
        "topic create t --set durability",
        "produce t --acks some",
        "produce",
        "consume t --max -1",
        "broker --id 1 --listen 127.0.0.1:7400 --data x",
        "broker --id 1 --listen 127.0.0.1:7400 --data x --standalone --zookeeper 127.0.0.1:2181",
        "broker --id 1 --listen nonsense --data x --standalone",
        "broker --id 1 --listen 127.0.0.1:7400 --data x --standalone --peer-listen 127.0.0.1:7500",
        "broker --id 1 --listen 127.0.0.1:7400 --data x --zookeeper 127.0.0.1:2181 --peer-listen nonsense",
        "broker --id 0 --listen 127.0.0.1:7400 --data x --standalone",
        "dev --brokers 3 --no-zookeeper",
    ],
)
def test_wrong_use_ends_with_2_and_writes_nothing(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(line.split()) == MISUSED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        "topic list",
        "topic describe t",
        "cluster status",
        "group list",
        "produce t",
        "consume t --max 1 --from earliest",
    ],
)
def test_an_address_that_nobody_listens_on_is_named(line: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        result = tritonmq(*line.split(), "--bootstrap", address, "--timeout", "1", given=b"a message\n")
    assert (result.returncode, result.stdout) == (REFUSED, b"")
    assert address.encode() in result.stderr
    assert b"Traceback" not in result.stderr


@pytest.mark.cluster
def test_a_broker_whose_zookeeper_is_not_there_waits_says_what_for_and_ends_when_told(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        words = ("--id", "1", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "b"), "--zookeeper", address)
        with Command("broker", *words) as broker:
            told = broker.remark_with(f"no ZooKeeper answers at {address}")
            assert "does it demand TLS? give --zookeeper-certs" in told
            assert broker.end() == 0


def test_the_bootstrap_address_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITONMQ_BOOTSTRAP", "not an address")
    assert run(["topic", "list"]) == MISUSED
    assert "not an address" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["queue", "--bootstrap", "b:1", "list"], "--bootstrap belongs behind the command: tritonmq queue list --boot"),
        (["--bootstrap=b:1", "queue", "list"], "--bootstrap belongs behind the command: tritonmq queue list --boot"),
        (["--bootstrap", "b:1", "consume", "t"], "--bootstrap belongs behind the command: tritonmq consume --boot"),
        (["queue", "--schema", "list"], "No such option '--schema'"),
    ],
)
def test_an_option_before_its_command_is_told_where_it_belongs(words: list[str], told: str) -> None:
    done = tritonmq(*words)
    assert done.returncode == MISUSED
    assert told in done.stderr.decode()


@pytest.mark.parametrize("command", [["describe", "--partition", "0"], ["peek"]])
def test_who_asks_a_queue_for_dead_letters_is_told_where_they_are(command: list[str]) -> None:
    done = tritonmq("queue", *command, "t", "g", "--state", "dead")
    assert done.returncode == MISUSED
    assert b"`tritonmq consume TOPIC.dead --from earliest`" in done.stderr
