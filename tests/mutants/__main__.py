"""Change the product in one small place, run the tests that reach that place, and see whether one fails. Then the next
place.

`python -m tests.mutants [--package FOLDER ...] [--sample N] [--only TEXT ...] [--table FILE]`. A mutant that no test
notices *survives*. It shows a hole in the tests, or it makes no difference; `explained.toml` lists those that make
none, each with the reason. `--sample N` takes one mutant of N, always the same ones; `--remainder R` (below N) takes
others.

`--tests PATH` measures and runs the tests below that path alone, which is quick for a package that few tests are about.
`--also TEST` is run against each mutant that survives those, whether it reaches the line or not (some seeds of the
simulator, say). `--from FILE` tries those that a former run printed.

Tests that start processes are left out, because a mutant lives in this process alone. Each mutant is a fork, which
compiles its own text of one module before it imports the product. Nothing is written into the source.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType

import pytest

from tests.mutants.covering import DATA, Covered
from tests.mutants.one_zookeeper import one_zookeeper
from tests.mutants.points import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PACKAGES = (
    "src/mq_broker/core",
    "src/mq_broker/broker",
    "src/mq_broker/rpc",
    "src/mq_broker/storage",
    "src/mq_broker/coordination",
    "src/mq_client",
)
UNPROCESSED = ("-m", "not cluster and not spark", "--ignore=tests/notebooks", "--ignore=tests/mutants")
ONE_ZOOKEEPER = ("-p", "tests.mutants.one_zookeeper")
QUICKLY = ("-x", "-q", "-p", "no:cacheprovider", *ONE_ZOOKEEPER, "--no-header", "--tb=no", "--assert=plain")
"""That something differs is enough: to show how two long texts differ takes longer than most tests."""

TESTS_S = 20.0
"""So many seconds of tests are run against a mutant at most, the quick ones first."""

TEST_S = 60
"""A test that takes longer fails: it hangs, by the mutant."""

PATIENCE_S = 180.0
"""A fork that has not ended after this is taken for one that hangs: a test would have failed by its time-out."""

WARMED = ("pyarrow", "numpy", "grpc", "google.protobuf", "kazoo.client", "click", "rich.console", "google_crc32c")
"""Imported once, before the forks: nothing of the product's, which each fork imports for itself."""

SHARED_BROKER = """
import sys
from pathlib import Path
from mq_dev.local_cluster import LocalCluster
with LocalCluster(Path(sys.argv[1])) as cluster:
    print(cluster.bootstrap, flush=True)
    sys.stdin.read()
"""
"""The program of a broker that the tests of all mutants use: to start one for each would take longer than most
tests."""

COLUMNS = ("package", "sample", "mutants", "tried", "noticed", "make no difference", "survive", "the tests were")
HEADER = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module another text."""

    def __init__(self, module: str, path: Path, text: str) -> None:
        self._module = module
        self._path = path
        self._text = text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        package = [str(self._path.parent)] if self._path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=self, submodule_search_locations=package
        )

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._text, str(self._path), "exec"), vars(module))


class InOrder:
    """A plugin of pytest: the tests run in this order, the quick ones first, and not in that of tests/conftest.py."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._places.get(item.nodeid, len(self._places)))


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: `noticed`, `hung`, `survived` or `no test`."""

    mutant: Mutant
    outcome: str

    @property
    def alive(self) -> bool:
        return self.outcome in ("survived", "no test")


def module_of(file: str) -> str:
    return file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def sampled(mutants: Iterable[Mutant], sample: int, remainder: int = 0) -> list[Mutant]:
    """One of so many, chosen by what it is: the same ones in each run, wherever they stand in the file."""
    return [each for each in mutants if zlib.crc32(each.key.encode()) % sample == remainder]


def explanations(mutants: Iterable[Mutant], entries: Iterable[Mapping[str, str]]) -> set[str]:
    """The keys of `explained.toml`. SystemExit: an entry would hold for mutants of two files, of which it may be true
    for one."""
    explained = {entry["mutant"] for entry in entries}
    files: dict[str, set[str]] = {}
    for mutant in mutants:
        if mutant.key in explained:
            files.setdefault(mutant.key, set()).add(mutant.file)
    for key, found in files.items():
        if len(found) > 1:
            raise SystemExit(f"explained.toml: {key!r} is in {sorted(found)}: give one of the functions another name")
    return explained


def begin(mutant: Mutant, tests: Sequence[str], output: Path) -> int:
    """Fork; the child runs the tests against the mutant and ends with pytest's status. Returns the child's process
    id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os.setsid()
        with output.open("wb") as to:
            os.dup2(to.fileno(), 1)
            os.dup2(to.fileno(), 2)
        text = mutant.applied((ROOT / mutant.file).read_text())
        sys.meta_path.insert(0, Loader(module_of(mutant.file), ROOT / mutant.file, text))
        status = pytest.main([*tests, *QUICKLY, f"--timeout={TEST_S}"], plugins=[InOrder(tests)])
        os._exit(int(status))
    except Warning:  # pytest raises what a thread failed with when the last test was over
        traceback.print_exc()
        os._exit(1)
    except BaseException:  # noqa: BLE001 (a fork that went on would run the parent's code)
        traceback.print_exc()
        os._exit(99)


@contextlib.contextmanager
def shared_broker() -> Iterator[None]:
    """While it lasts, tests/mq_client uses this broker. It is not changed: it runs in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SHARED_BROKER, folder]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise SystemExit("the shared broker did not start")
        os.environ["TRITONMQ_TEST_BOOTSTRAP"] = address
        try:
            yield
        finally:
            process.stdin.close()
            process.wait()


class Hunt:
    """Owns the forks that run side by side. `also`: tests for every mutant, after those that reach its line."""

    def __init__(self, covered: Covered, folder: Path, processes: int, also: Sequence[str]) -> None:
        self._covered = covered
        self._folder = folder
        self._processes = processes
        self._also = also
        self._running: dict[int, tuple[Mutant, float]] = {}
        self.verdicts: list[Verdict] = []

    def run(self, mutants: Sequence[Mutant]) -> None:
        """However it ends, no fork is left."""
        try:
            self._run(mutants)
        finally:
            self._end()

    def _run(self, mutants: Sequence[Mutant]) -> None:
        chosen = [[*self._chosen(mutant), *self._also] for mutant in mutants]
        self._see_that_there_are(sorted({test for tests in chosen for test in tests}))
        for number, (mutant, tests) in enumerate(zip(mutants, chosen, strict=True)):
            if not tests:
                self._tell(Verdict(mutant, "no test"))
                continue
            while len(self._running) >= self._processes:
                self._reap()
            self._begin(mutant, tests, self._folder / f"{number}.txt")
        while self._running:
            self._reap()

    def _begin(self, mutant: Mutant, tests: Sequence[str], output: Path) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # it must not come before the fork is known
        try:
            self._running[begin(mutant, tests, output)] = (mutant, time.monotonic() + PATIENCE_S)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def _end(self) -> None:
        while self._running:
            child, _ = self._running.popitem()
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:  # it has no group of its own yet
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def _see_that_there_are(self, tests: Sequence[str]) -> None:
        """A test that was renamed since the coverage was measured would fail, and seem to notice something."""
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *tests]
        result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if tests and result.returncode:
            raise SystemExit(
                f"measure the coverage anew (leave out --covered):\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
            )

    def _chosen(self, mutant: Mutant) -> list[str]:
        chosen: list[str] = []
        spent_s = 0.0
        for took_s, node in self._covered.tests_of(ROOT / mutant.file, mutant.line):
            if chosen and spent_s + took_s > TESTS_S:
                break
            spent_s += took_s
            chosen.append(node)
        return chosen

    def _reap(self) -> None:
        """Take in one that has ended, or end one whose time is over."""
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            mutant, _ = self._running.pop(child)
            code = os.waitstatus_to_exitcode(status)
            if code in (5, 99):
                raise SystemExit(f"{mutant.key}: its tests could not be run (status {code}): look into {self._folder}")
            self._tell(Verdict(mutant, "survived" if code == 0 else "noticed"))
            return
        for child, (mutant, deadline) in list(self._running.items()):
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                del self._running[child]
                self._tell(Verdict(mutant, "hung"))
                return
        time.sleep(0.01)

    def _tell(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        if verdict.alive:
            print(
                f"{verdict.outcome:>8}  {verdict.mutant.file}:{verdict.mutant.line}  {verdict.mutant.key}", flush=True
            )


def rows(
    packages: Sequence[str],
    sample: str,
    verdicts: Sequence[Verdict],
    all_mutants: Sequence[Mutant],
    explained: set[str],
) -> list[str]:
    """Lines of the table, one a package. The last column is for a person to fill in."""
    lines = []
    for package in packages:
        mine = [each for each in verdicts if each.mutant.file.startswith(package + "/")]
        alive = [each for each in mine if each.alive]
        alike = [each for each in alive if each.mutant.key in explained]
        survive = len(alive) - len(alike)
        share = f"{survive} ({100 * survive / len(mine):.1f} %)" if mine else "0"
        total = sum(each.file.startswith(package + "/") for each in all_mutants)
        lines.append(
            f"| `{package}` | {sample} | {total} | {len(mine)} | {len(mine) - len(alive)} | {len(alike)} | {share} |  |"
        )
    return lines


def put_into(table: Path, lines: Sequence[str]) -> None:
    """Each in the place of the former line of its package and sample, whose last column it keeps; else below its
    package's."""
    text = table.read_text().split("\n")
    for line in lines:
        package, sample = line.split(" | ")[:2]
        *_, last = [number for number, each in enumerate(text) if each.startswith(package + " |")]
        former = [number for number, each in enumerate(text) if each.startswith(f"{package} | {sample} |")]
        if former:
            text[former[0]] = line.removesuffix("  |") + " " + text[former[0]].split("|")[-2].strip() + " |"
        else:
            text.insert(last + 1, line)
    table.write_text("\n".join(text))


def _told_to_end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)  # what has been started is ended on the way out


def told() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=1, help="try one mutant of so many")
    parser.add_argument("--remainder", type=int, default=0, help="another sample of the same size")
    parser.add_argument("--package", action="append", choices=PACKAGES, help="change this one alone")
    parser.add_argument("--tests", action="append", help="measure and run the tests of this file or folder alone")
    parser.add_argument(
        "--also", action="append", default=[], help="a test that is run against every mutant, after the others"
    )
    parser.add_argument(
        "--from", dest="former", type=Path, help="those that stand in this file, the output of a former run"
    )
    parser.add_argument("--only", action="append", default=[], help="those whose file or key contains this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants", help="for coverage and output")
    parser.add_argument("--covered", action="store_true", help="use the coverage that a former run left")
    parser.add_argument("--table", type=Path, help="put the counts into this file, in the place of its table")
    return parser.parse_args()


def main() -> int:
    signal.signal(signal.SIGTERM, _told_to_end)
    arguments = told()
    packages = arguments.package or PACKAGES
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    with one_zookeeper(), shared_broker() if "src/mq_client" in packages else contextlib.nullcontext():
        return hunt(arguments, packages)


def hunt(arguments: argparse.Namespace, packages: Sequence[str]) -> int:
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.covered:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.mutants.covering",
            *ONE_ZOOKEEPER,
            *UNPROCESSED,
            *(arguments.tests or ()),
        ]
        subprocess.run(command, cwd=ROOT, env={**os.environ, DATA: str(folder)}, check=False)
    files = sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))
    everything = [each for path in files for each in mutants_of(str(path.relative_to(ROOT)), path.read_text())]
    explained = explanations(everything, tomllib.loads((HERE / "explained.toml").read_text())["explained"])
    chosen = sampled(everything, arguments.sample, arguments.remainder)
    if arguments.former is not None:
        former = {line.partition("  src/")[2].partition("  ")[2] for line in arguments.former.read_text().splitlines()}
        chosen = [each for each in chosen if each.key in former]
    chosen = [each for each in chosen if all(part in f"{each.file}:{each.key}" for part in arguments.only)]
    # The broker's packages know nothing of it
    for name in WARMED if "src/mq_client" in packages else ("mq_client", *WARMED):
        importlib.import_module(name)
    running = Hunt(Covered(folder), folder, arguments.processes, arguments.also)
    running.run(chosen)
    sample = f"{arguments.remainder} of {arguments.sample}"
    lines = rows(packages, sample, running.verdicts, everything, explained)
    print("\n".join([HEADER, *lines]))
    if arguments.table is not None and arguments.former is None and not arguments.only:  # else it was no whole sample
        put_into(arguments.table, lines)
    return 1 if any(each.alive and each.mutant.key not in explained for each in running.verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
