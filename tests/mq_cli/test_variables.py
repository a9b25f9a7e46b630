"""Misspelt variables of the environment are told, and those of others are left alone."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mq_cli.main import cli, misspelt
from mq_cli.settings_file import keys


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TRITONMQ_BOOTSTRP", "TRITONMQ_BOOTSTRAP"),
        ("TRITONMQ_CERT", "TRITONMQ_CERTS"),
        ("TRITONMQ_BROKER_LISTN", "TRITONMQ_BROKER_LISTEN"),
        ("TRITONMQ_LOGLEVEL", "TRITONMQ_LOG_LEVEL"),
    ],
)
def test_a_variable_that_means_nothing_is_told_with_the_nearest(name: str, meant: str) -> None:
    assert misspelt([name, "PATH", "TRITONMQ_USER"]) == [(name, meant)]
    said = CliRunner().invoke(cli, ["config"], env={name: "x"})
    assert said.stderr.splitlines()[0] == f"warning: the variable {name} means nothing: did you mean {meant}?"


@pytest.mark.parametrize(
    "name",
    [
        "TRITONMQ_SERVICE_HOST",
        "TRITONMQ_BROKER_PORT_7400_TCP_ADDR",
        "TRITONMQ_BROKER_SERVICE_PORT",
        "TRITONMQ_TEST_BOOTSTRAP",
        "TRITONMQ_ROLL",
        "TRITONMQ_LOCK_TOKEN",
        "TRITONMQ_DELIVERIES",
        "TRITONMQ",
        "tritonmq_bootstrp",
        "MY_TRITONMQ_BOOTSTRP",
    ],
)
def test_what_is_somebody_elses_is_left_alone(name: str) -> None:
    assert misspelt([name]) == []


def test_every_variable_that_means_something_is_known() -> None:
    assert misspelt(key.environment for section in keys().values() for key in section.values()) == []
