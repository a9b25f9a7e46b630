"""A process that Spark keeps: what lives as long as it does is taken out of the collector's sight, and a worker whose
rows Spark no longer wants ends without a traceback. Nobody else's process is touched."""

from __future__ import annotations

import gc
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from mq_spark.datasource import worker
from mq_spark.datasource.worker import keep_quiet_about_closed_sockets


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def pretend_main(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=name))
    monkeypatch.setattr(worker, "keep_freed_memory", lambda: True)


def in_sight(thing: object) -> bool:
    """Of the collector. (How many objects are not is no measure: threads of other tests let go of some at any time.)"""
    return any(each is thing for each in gc.get_objects())


def test_the_second_piece_of_work_leaves_all_that_is_there_out_of_later_collections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_main(monkeypatch, "pyspark.daemon")
    process, module = worker._Worker(), ["imported"]
    process.begins()
    assert in_sight(module)
    process.begins()
    assert not in_sight(module)
    result = ["made"]
    process.begins()
    assert in_sight(result)


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
