"""Random inputs for code that reads what strangers, other brokers and disks give.

Each target is a module with `generate(chance) -> bytes` and `check(data) -> bool`. `check` says whether the input was
accepted, and raises for anything that is neither a valid answer nor one of our own errors. Cases run in a child
process, because a crash of native code takes its process down. Before each case the child writes the input to a file,
so the parent knows which input it was.
"""

from __future__ import annotations

import gc
import importlib
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

TARGETS: Final = (
    "batches",
    "certificates",
    "console",
    "disk",
    "documents",
    "envelopes",
    "filters",
    "flights",
    "frames",
    "issuers",
    "key_files",
    "lying",
    "messages",
    "requests",
    "schemas",
    "snapshots",
    "streams",
    "tokens",
)
CORPUS: Final = Path(__file__).with_name("corpus")

CASE_MS_MAX: Final = 50.0
"""Of processor time, which other work on the machine does not lengthen. A case takes about a millisecond. A target
whose cases are whole conversations has its own, and `CASES`: so many are tried in the ordinary run."""

TRIES: Final = 3
"""So often an input may seem slow: the processor's clock counts what happens to come between, too."""

GROWTH_BYTES_MAX: Final = 64 << 20
"""By so much a child may grow over all that it did before its first case."""


class Found(NamedTuple):
    """What a run found. `counts`: of each target, how many inputs were accepted and refused. `failed`: the input that
    ended it, None if all is well, and of which `target` it is. `guided`: by Atheris; then `counts` are the inputs that
    were tried and the places of our code that they reached."""

    counts: dict[str, tuple[int, int]]
    failed: bytes | None = None
    target: str = ""
    report: str = ""
    guided: bool = False


def corpus(target: str) -> list[Path]:
    """The inputs that are kept: those that failed once, and those that stand for a kind."""
    directory = CORPUS / target
    return sorted(directory.iterdir()) if directory.exists() else []


def run(
    targets: Sequence[str], seed: int, directory: Path, *, cases: int = 0, seconds: float = 0.0, replay: bool = False
) -> Found:
    """Runs the targets in a child, one after another: `cases` inputs each, or as many as fit in `seconds`, or the
    corpus."""
    current = directory / "input"
    current.write_bytes(b"")
    arguments = ["--child", ",".join(targets), str(seed), str(cases), str(seconds), str(current), str(int(replay))]
    timeout = 160 + 2 * seconds * len(targets)
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, cwd=CORPUS.parents[2]
        )
    except subprocess.TimeoutExpired:
        return failed(current, f"it did not end within {timeout} s")
    if done.returncode:
        return failed(current, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}")
    return Found({name: tuple(counts) for name, counts in json.loads(done.stdout).items()})


def failed(current: Path, report: str) -> Found:
    """What the child was trying when it ended."""
    target, _, data = current.read_bytes().partition(b"\n")
    return Found({}, data, target.decode(), report)


def child(targets: Sequence[str], seed: int, cases: int, seconds: float, current: Path, *, replay: bool) -> None:
    """Runs the inputs here. Any exception ends the process."""
    modules = {target: importlib.import_module(f"tests.fuzz.{target}") for target in targets}
    counts: dict[str, tuple[int, int]] = {}
    with current.open("r+b", buffering=0) as note:
        for target, module in modules.items():
            cases_of = Cases(target, module, note)
            cases_of.warm_up()
            kept = (path.read_bytes() for path in corpus(target))
            cases_of.over(kept if replay else _made(module, seed, cases, seconds))
            counts[target] = cases_of.refused, cases_of.accepted
    print(json.dumps({target: (accepted, refused) for target, (refused, accepted) in counts.items()}))


def _made(module: ModuleType, seed: int, cases: int, seconds: float) -> Iterable[bytes]:
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    made = 0
    cases = min(cases, getattr(module, "CASES", cases))
    while made < cases or time.monotonic() < end:
        yield module.generate(chance)
        made += 1


class Cases:
    """Owns the counts of one target, and the file that says which input is tried."""

    def __init__(self, target: str, module: ModuleType, note: FileIO, growth_bytes_max: int = GROWTH_BYTES_MAX) -> None:
        self.accepted = self.refused = 0
        self._name = target.encode() + b"\n"
        self._module = module
        self._note = note
        self._growth_bytes_max = growth_bytes_max
        self._peak_bytes_max = 0
        self._case_ms_max = getattr(module, "CASE_MS_MAX", CASE_MS_MAX)

    def warm_up(self) -> None:
        """What is done once, such as to compile a pattern, is no cost of any case."""
        chance = random.Random(0)
        for _ in range(20):
            self._check(self._module.generate(chance))
        gc.collect()
        gc.freeze()
        self._peak_bytes_max = _peak_bytes() + self._growth_bytes_max

    def over(self, inputs: Iterable[bytes]) -> None:
        for data in inputs:
            for left in reversed(range(TRIES)):
                begun = time.process_time()
                accepted = self._check(data)
                taken_ms = 1_000 * (time.process_time() - begun)
                if taken_ms <= self._case_ms_max:
                    break
                if not left:
                    raise AssertionError(
                        f"the input took {taken_ms:.0f} ms: at most {self._case_ms_max:.0f} are allowed"
                    )
            if _peak_bytes() > self._peak_bytes_max:
                raise AssertionError(f"the process grew by more than {self._growth_bytes_max} bytes")
            self.accepted += accepted
            self.refused += not accepted

    def _check(self, data: bytes) -> bool:
        self._note.seek(0)
        self._note.truncate()
        self._note.write(self._name + data)
        accepted: bool = self._module.check(data)
        return accepted


def _peak_bytes() -> int:
    """The most memory that this process has had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
