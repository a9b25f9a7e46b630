"""Random inputs for code that hands what strangers send to native code.

Each target is a module with `generate(chance) -> bytes` and `check(data) -> bool`. `check` says whether the input was
accepted, and raises for anything that is neither a valid answer nor one of our own errors. Cases run in a child
process, because a crash of native code takes its process down. Before each case the child writes the input to a file,
so the parent knows which input it was.
"""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
import time
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

TARGETS = ("filters", "messages", "schemas")
CORPUS = Path(__file__).with_name("corpus")
CASE_SECONDS_MAX = 2.0
"""A case takes about a millisecond. The bound has room for a machine that does other work."""


class Found(NamedTuple):
    """What a run found. `failed`: the input that ended it, None if all is well."""

    accepted: int
    refused: int
    failed: bytes | None
    report: str


def corpus(target: str) -> list[Path]:
    """The inputs that are kept: those that failed once, and those that stand for a kind."""
    return sorted((CORPUS / target).iterdir())


def run(
    target: str, seed: int, directory: Path, *, cases: int = 0, seconds: float = 0.0, replay: bool = False
) -> Found:
    """Runs the target in a child: `cases` inputs, or as many as fit in `seconds`, or the corpus."""
    current = directory / "input"
    current.write_bytes(b"")
    arguments = ["--child", target, str(seed), str(cases), str(seconds), str(current), str(int(replay))]
    timeout = 120 + 2 * seconds
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, cwd=CORPUS.parents[2]
        )
    except subprocess.TimeoutExpired:
        return Found(0, 0, current.read_bytes(), f"it did not end within {timeout} s")
    if done.returncode:
        return Found(0, 0, current.read_bytes(), f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}")
    accepted, refused = map(int, done.stdout.split())
    return Found(accepted, refused, None, "")


def child(target: str, seed: int, cases: int, seconds: float, current: Path, *, replay: bool) -> None:
    """Runs the inputs here. Any exception ends the process."""
    module = importlib.import_module(f"tests.fuzz.{target}")
    counts = [0, 0]
    with current.open("r+b", buffering=0) as note:
        if replay:
            for path in corpus(target):
                counts[_one(module, path.read_bytes(), note)] += 1
        else:
            chance = random.Random(seed)
            end = time.monotonic() + seconds
            while sum(counts) < cases or time.monotonic() < end:
                counts[_one(module, module.generate(chance), note)] += 1
    print(counts[True], counts[False])


def _one(module: ModuleType, data: bytes, note: FileIO) -> bool:
    note.seek(0)
    note.truncate()
    note.write(data)
    begun = time.monotonic()
    accepted: bool = module.check(data)
    taken = time.monotonic() - begun
    if taken > CASE_SECONDS_MAX:
        raise AssertionError(f"the input took {taken:.1f} s: at most {CASE_SECONDS_MAX} s are allowed")
    return accepted
