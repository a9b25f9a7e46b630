"""A worker whose rows Spark no longer wants ends without a traceback; every other error is printed as ever."""

from __future__ import annotations

import importlib.util
import traceback
from types import ModuleType

import pytest

from mq_spark.datasource.worker import keep_quiet_about_closed_sockets


@pytest.fixture
def daemon() -> ModuleType:
    """A module that uses `traceback` as pyspark's daemon does."""
    module = ModuleType("daemon")
    module.traceback = traceback  # type: ignore[attr-defined]
    keep_quiet_about_closed_sockets(module)
    return module


def printed(daemon: ModuleType, error: BaseException, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        raise error
    except type(error):
        daemon.traceback.print_exc()
    return capsys.readouterr().err


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ConnectionResetError(104, "reset")])
def test_nothing_is_printed_of_a_socket_that_spark_has_closed(
    daemon: ModuleType, error: OSError, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(daemon, error, capsys) == ""


@pytest.mark.parametrize("error", [ValueError("mine"), OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_other_errors_are_printed_whole(
    daemon: ModuleType, error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(daemon, error, capsys).startswith("Traceback (most recent call last)")
    assert daemon.traceback.format_exc is traceback.format_exc


def test_pyspark_s_daemon_prints_by_the_name_that_is_replaced() -> None:
    found = importlib.util.find_spec("pyspark.daemon")
    assert found is not None
    source = found.loader.get_source("pyspark.daemon") or ""  # type: ignore[union-attr]
    assert "import traceback\n" in source
    assert "traceback.print_exc()\n" in source
