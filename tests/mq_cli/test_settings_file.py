"""Settings from options, the environment and a file: which wins, what is refused, and what is told of them."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import click
import pytest

from mq_cli.commands import command
from mq_cli.connection import CONNECTION, Connection
from mq_cli.machines.broker import broker
from mq_cli.main import DONE, MISUSED, REFUSED, run
from mq_cli.settings_file import Key, SettingsFault, keys, load
from mq_cli.values import SIZE

ROOT = Path(__file__).parents[2]
KEYS = [key for section in keys().values() for key in section.values()]
GIVEN = {"broker.id": "7", "broker.listen": "127.0.0.1:1", "broker.data": "d"}
"""What a broker must be given."""


@pytest.fixture(autouse=True)
def _nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TRITONMQ_CONFIG", "TRITONMQ_PROFILE", *(key.environment for key in KEYS)):
        monkeypatch.setenv(name, "")  # what a command puts there itself is taken away after the test
        monkeypatch.delenv(name)


@command()
def client(connection: Connection = CONNECTION) -> None:
    """As every command that speaks with brokers."""


def values_for(option: click.Option) -> tuple[Any, Any, Any]:
    """Three that the option takes, as a file has them."""
    kind = option.type
    if option.is_flag:
        return True, False, True
    if isinstance(kind, click.Choice):
        first, *_, last = kind.choices
        return last, first, last
    if isinstance(kind, click.IntRange):
        least = int(kind.min or 1) + 1
        return least, least + 1, least + 2
    if isinstance(kind, click.types.FloatParamType):
        return 2.5, 3.5, 4.5
    if kind is SIZE:
        return "1MiB", "2MiB", 3 << 20
    return "User:a", "User:b", "User:c"


def parsed(of: click.Command, *arguments: str) -> click.Context:
    return of.make_context("tritonmq", list(arguments))


def value_of(key: Key, *arguments: str) -> Any:
    context = parsed(client if key.section == "client" else broker, *arguments)
    return context.params[str(key.option.name)]


def toml(value: Any) -> str:
    return json.dumps(value)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.section}.{key.name}")
def test_an_option_goes_before_the_environment_that_before_the_file_and_that_before_the_default(
    key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_file, in_environment, as_option = values_for(key.option)
    path = tmp_path / "tritonmq.toml"
    path.write_text(f"[{key.section}]\n{key.name} = {toml(in_file)}\n")
    must = {"--" + name.partition(".")[2]: value for name, value in GIVEN.items()} if key.section != "client" else {}
    if key.name == "user":
        must["--certs"] = "certs"  # without it a user that is typed is refused
    must.pop(key.flag, None)
    others = [word for pair in must.items() for word in pair]

    def expected(value: Any) -> Any:
        if key.name == "superusers":
            return tuple(map(_principal, [value]))
        if key.name == "authenticators":
            return (value,)
        return key.option.type.convert(value, key.option, None)

    assert value_of(key, *others, "--config", str(path)) == expected(in_file)
    monkeypatch.setenv(key.environment, str(in_environment))
    assert value_of(key, *others, "--config", str(path)) == expected(in_environment)
    flag = [key.flag] if key.option.is_flag else [key.flag, str(as_option)]
    assert value_of(key, *others, "--config", str(path), *flag) == expected(as_option)
    monkeypatch.delenv(key.environment, raising=False)
    if not key.option.required:
        assert value_of(key, *others) != expected(in_file) or key.name in ("certs", "user")


def _principal(text: str) -> Any:
    from mq_broker.security.names import Principal

    return Principal.parse(text)


def test_the_documents_table_names_every_setting() -> None:
    table = re.findall(
        r"^\| `([\w.]+)` \| `(--[\w-]+)` \| `(\w+)` \|$", (ROOT / "docs/configuration.md").read_text(), re.M
    )
    rows = [(f"{key.section}.{key.name}", key.flag, key.environment) for key in KEYS]
    as_it_should_be = "\n".join("| " + " | ".join(f"`{cell}`" for cell in row) + " |" for row in rows)
    assert table == rows, f"the table of docs/configuration.md should be\n{as_it_should_be}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[brokr]\n", r"\[brokr\] means nothing: did you mean 'broker'\?"),
        ("[broker]\nlistn = 'x'\n", r"broker.listn means nothing: did you mean 'listen'\?"),
        ("[log]\nlevel = 'loud'\n", "log.level: 'loud' is not one of"),
        ("[broker]\nconnections_max = 0\n", "broker.connections_max: 0 is not in the range"),
        ("[broker]\nconnections_max = 1.5\n", "connections_max must be a whole number"),
        ("[broker]\nconnections_max = true\n", "connections_max must be a whole number"),
        ("[broker]\nstandalone = 'yes'\n", "standalone must be true or false"),
        ("[broker]\nlisten = 7400\n", "listen must be text"),
        ("[broker]\nlisten = ['a', 'b']\n", "listen must be text"),
        ("[broker]\nmemory_high = '1 bit'\n", "no size"),
        ("[client]\ntimeout_s = nan\n", "no number of seconds"),
        ("[profiles.prod]\nlisten = 'x'\n", "profiles.prod.listen means nothing"),
        ("[profiles]\nprod = 1\n", r"write \[profiles.prod\]"),
        ("broker = 1\n", r"write \[broker\]"),
        ("[broker\n", "cannot be read as TOML"),
        ("[broker]\nid = 1\nid = 2\n", "cannot be read as TOML"),
        ("a = " + "[" * 5000, "cannot be read as TOML"),
        ("#" * (1 << 20) + "\n", "no file of settings"),
    ],
)
def test_a_file_that_is_wrong_is_refused_whole(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "tritonmq.toml"
    path.write_text(text)
    with pytest.raises(SettingsFault, match=told):
        load(path)


def test_what_is_no_setting_is_not_shown_when_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tritonmq.toml"
    path.write_text("[client]\npassword = 'hunter2'\n")
    for words in ("config show --config", "config check", "topic list --config"):
        assert run([*words.split(), str(path)]) == MISUSED
        said = capsys.readouterr()
        assert "client.password means nothing" in said.err
        assert "hunter2" not in said.err + said.out


def test_a_profile_goes_before_the_clients_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tritonmq.toml"
    path.write_text('[client]\nbootstrap = "127.0.0.1:1"\ntimeout_s = 7\n[profiles.prod]\nbootstrap = "127.0.0.1:2"\n')

    def taken(*words: str) -> tuple[Any, Any]:
        given = parsed(client, *words).params
        return given["bootstrap"], given["timeout_s"]

    assert taken("--config", str(path)) == ("127.0.0.1:1", 7.0)
    for words in (["--config", str(path), "--profile", "prod"], ["--profile", "prod", "--config", str(path)]):
        assert taken(*words) == ("127.0.0.1:2", 7.0)
    monkeypatch.setenv("TRITONMQ_PROFILE", "prod")
    monkeypatch.setenv("TRITONMQ_CONFIG", str(path))
    assert parsed(client).params["bootstrap"] == "127.0.0.1:2"
    assert run(["topic", "list"]) == REFUSED
    assert "127.0.0.1:2" in capsys.readouterr().err
    assert run(["topic", "list", "--profile", "prdo"]) == MISUSED
    assert "did you mean 'prod'?" in capsys.readouterr().err


def test_clients_look_at_the_users_own_file_and_brokers_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "config" / "tritonmq" / "config.toml"
    assert run(["topic", "list", "--profile", "prod"]) == MISUSED
    assert "--config FILE" in capsys.readouterr().err
    own.parent.mkdir(parents=True)
    own.write_text('[client]\nbootstrap = "127.0.0.1:3"\n[broker]\nrack = "r1"\n')
    assert parsed(client).params["bootstrap"] == "127.0.0.1:3"
    words = ["--id", "7", "--listen", "127.0.0.1:1", "--data", "d"]
    assert parsed(broker, *words).params["rack"] == ""
    assert run(["config", "show", "--json"]) == DONE
    shown = {each["setting"]: each for each in json.loads(capsys.readouterr().out)}
    assert (shown["client.bootstrap"]["value"], shown["client.bootstrap"]["from"]) == ("127.0.0.1:3", str(own))
    assert (shown["broker.rack"]["value"], shown["broker.rack"]["from"]) == ("", "default")


def test_show_says_where_each_value_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tritonmq.toml"
    path.write_text('[broker]\nrack = "r1"\n[log]\nlevel = "debug"\n[profiles.prod]\ntimeout_s = 3\n')
    monkeypatch.setenv("TRITONMQ_BROKER_RACK", "r2")
    assert run(["config", "show", "--config", str(path), "--profile", "prod", "--json"]) == DONE
    shown = {each["setting"]: (each["value"], each["from"]) for each in json.loads(capsys.readouterr().out)}
    assert list(shown) == [f"{key.section}.{key.name}" for key in KEYS]
    assert shown["broker.rack"] == ("r2", "environment")
    assert shown["log.level"] == ("debug", str(path))
    assert shown["client.timeout_s"] == (3, f"{path} [profiles.prod]")
    assert shown["client.bootstrap"] == ("127.0.0.1:7400", "default")
    assert shown["broker.id"] == (None, "must be given")
    assert run(["config", "check", str(path)]) == DONE
    assert "3 settings, 1 profile" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "number"), [("broker-0", 1), ("tritonmq-12.svc.local", 13)])
def test_a_brokers_id_may_come_from_the_name_of_its_machine(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tritonmq.toml"
    path.write_text('[broker]\nid = "hostname"\nlisten = "127.0.0.1:1"\ndata = "d"\n')
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    assert parsed(broker, "--config", str(path)).params["broker"] == number
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop.b-1")
    load(path)  # it may be the file of another machine
    with pytest.raises(click.BadParameter, match="no number at its end"):
        parsed(broker, "--config", str(path))
