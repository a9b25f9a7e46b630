"""A process that Spark keeps: what lives as long as it does is taken out of the collector's sight. Nobody else's is
touched."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mq_spark.datasource import worker


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
