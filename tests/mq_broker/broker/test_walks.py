"""Whoever looks at all partitions leaves others their turn: on a broker of 10,000 idle ones each look would hold up
everything for some milliseconds, and there is one for every concern."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq_broker.broker

ROOM = Path(inspect.getfile(mq_broker.broker)).parent
ALL = "partitions"


def walks(source: str) -> Iterator[int]:
    """Lines at which a coroutine goes through all partitions of the shell at once."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.For) and ast.unparse(inner.iter) == f"self._shell.{ALL}()":
                    yield inner.lineno


def test_a_walk_over_all_partitions_is_found() -> None:
    bad = "async def keep(self):\n    for each in self._shell.partitions():\n        pass\n"
    assert list(walks(bad)) == [2]
    good = bad.replace("for each in self._shell.partitions()", "async for each in in_turns(self._shell.partitions())")
    assert list(walks(good)) == []


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOM)))
def test_no_coroutine_walks_over_all_partitions_at_once(path: Path) -> None:
    assert list(walks(path.read_text())) == [], "use `Sweep` (runtime/periodic.py) or `in_turns` (runtime/streams.py)"
