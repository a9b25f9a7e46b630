"""The house rules that a program can check: sizes of files, functions and lines, and `match` statements that are
closed."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

from mq_broker.core import entries, messages
from mq_broker.storage.journal import segments

ROOT = Path(__file__).parents[1]
LINES_MAX = 900
FUNCTION_LINES_MAX = 60
COLUMNS_MAX = 120
GENERATED = "_pb2.py"

LANGUAGE = {
    name
    for module in (entries, messages, segments)
    for name, value in vars(module).items()
    if isinstance(value, type) and value.__module__ == module.__name__
}
"""Operations, events, effects, and orders to the writer: who adds one is told by mypy of every `match` that forgets
it."""


def python_files(*folders: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.split() or [
        str(p.relative_to(ROOT)) for folder in folders for p in (ROOT / folder).rglob("*.py")
    ]
    return [
        ROOT / name
        for name in names
        if name.endswith(".py") and not name.endswith(GENERATED) and (ROOT / name).exists()
    ]


ALL = python_files("src", "tests", "benchmarks", "release", "notebooks")


def statements(parent: ast.AST) -> Iterator[ast.AST]:
    """All below it, however deep, and none of their expressions: those are most of a file and take long to walk."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(parent, field, ()):
            yield child
            yield from statements(child)


def test_there_are_files_to_check() -> None:
    assert len(ALL) > 400
    assert {"Append", "TurnEnded", "WriteEntries", "Truncate"} <= LANGUAGE


def test_no_file_is_longer_than_it_may_be() -> None:
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in ALL}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}


def test_no_line_is_longer_than_it_may_be() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in ALL
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if len(re.sub(r"  # (type: ignore|noqa).*", "", line)) > COLUMNS_MAX
    ]
    assert long == []


def test_no_function_is_longer_than_it_may_be() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in ALL
        for node in statements(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def _open_matches(source: str) -> Iterator[int]:
    """Lines of `match` statements over the language that take what is new for something that they know."""
    for node in statements(ast.parse(source)):
        if not isinstance(node, ast.Match):
            continue
        named = {
            ast.unparse(pattern.cls).rpartition(".")[2]
            for case in node.cases
            for pattern in ast.walk(case.pattern)
            if isinstance(pattern, ast.MatchClass)
        }
        catches_all = next((case for case in node.cases if _is_wildcard(case.pattern)), None)
        if named & LANGUAGE and catches_all is not None and "assert_never" not in ast.unparse(catches_all):
            yield node.lineno


def _is_wildcard(pattern: ast.pattern) -> bool:
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None


def test_matches_over_the_language_take_nothing_new_for_something_known() -> None:
    """Without a catch-all mypy's `exhaustive-match` demands every case; with `assert_never` in it mypy does as well."""
    found = {str(path.relative_to(ROOT)): list(_open_matches(path.read_text())) for path in python_files("src")}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_an_open_match_is_found() -> None:
    closed = "match e:\n    case Append():\n        pass\n    case _:\n        assert_never(e)\n"
    left_open = closed.replace("assert_never(e)", "pass")
    within = "def f():\n    with g:\n        try:\n            pass\n        finally:\n" + indent(left_open, 12 * " ")
    assert list(_open_matches(closed)) == []
    assert list(_open_matches(left_open)) == [1]
    assert list(_open_matches(within)) == [6]
    assert list(_open_matches(left_open.replace("Append", "Other"))) == []


SOON_ENOUGH = re.compile(r"\bassert\b.*\b(?:monotonic|perf_counter|time)\(\) - [\w.]+ <")


def test_no_test_fails_because_the_machine_was_busy() -> None:
    """How long something took may be too little. It may not be too much: one stall of a test's machine is that. What
    must not be waited for would outlast the test instead (`timeout` in pyproject.toml)."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files("tests")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if SOON_ENOUGH.search(line)
    ]
    assert found == []


def test_an_assertion_that_something_was_quick_is_found() -> None:
    for line in ("assert time.monotonic() - began < 5", "assert 0.1 < time.perf_counter() - began < WAIT_S"):
        assert SOON_ENOUGH.search(line)
    assert not SOON_ENOUGH.search("assert time.monotonic() - began >= 1.49")


def test_nobody_waits_for_a_simple_queue_with_a_time_limit() -> None:
    """CPython 3.11's `SimpleQueue.get` waits for ever if the time is over before it begins to wait: what is left is
    negative then, which its lock takes for no limit. `queue.Queue` has the same methods."""
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in ALL if path != Path(__file__)}
    timed = re.compile(r"\.get\(.*timeout=")
    assert [name for name, text in texts.items() if "SimpleQueue" in text and timed.search(text)] == []
