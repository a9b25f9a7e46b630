"""Exactly once, under crashes: real queries on real brokers, hurt at named points, their output compared with their
input.

    make crashes CRASHES=200                          the whole table, written to tests/spark/CRASHES.md
    python -m tests.spark.crashes --only local/copy/before_publish/driver --repeat 5          one case, again and again

`cases.py` says what can be hurt where, and lays out a run from a seed (pure). A `Job` (job.py) is one query with its
checkpoint, its input and its outputs; its driver is a process of its own (driver.py). `injecting.py` carries out one
case; `judging.py` compares (pure); `brokers.py` and `failing_broker.py` are brokers that can be held still between a
decision and what follows it.

Nothing is simulated: processes end by SIGKILL and are started again on what they left on disk. Says nothing of power
loss. The exit code is 0 only if all was exact.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path
from types import FrameType

from tests.spark.crashes.cases import Case, case_named, every_case, plan
from tests.spark.crashes.ground import Ground, Result, totals
from tests.spark.crashes.table import table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.crashes", description="Hurt real queries; compare their output with their input."
    )
    parser.add_argument("--crashes", type=int, default=200, help="how many at least (200)")
    parser.add_argument("--seed", type=int, default=1, help="which cases come, and in what order (1)")
    parser.add_argument(
        "--only", action="append", metavar="CASE", help="this case and no other; may be given several times"
    )
    parser.add_argument("--repeat", type=int, default=1, help="how often each case of --only (1)")
    parser.add_argument("--mode", action="append", help="only cases of this mode: local, local-cluster, standalone")
    parser.add_argument("--list", action="store_true", help="show every case and end")
    parser.add_argument("--table", type=Path, help="write the table here")
    parser.add_argument(
        "--scratch",
        type=lambda given: Path(given).absolute(),
        help="keep what processes leave, logs too, in this new directory",
    )
    parser.add_argument("--forgetful", action="store_true", help="plant a fault: a new query id at each start")
    return parser.parse_args()


def _chosen(arguments: argparse.Namespace) -> list[list[Case]]:
    if arguments.only:
        wanted = [case_named(name) for name in arguments.only for _ in range(arguments.repeat)]
        queries = [list(cases) for _, cases in groupby(wanted, key=lambda case: (case.mode, case.job))]
    else:
        queries = plan(arguments.crashes, arguments.seed)
    return [cases for cases in queries if not arguments.mode or cases[0].mode in arguments.mode]


def _ground(arguments: argparse.Namespace, made: Path) -> Ground:
    return Ground(arguments.scratch or made, forgetful=arguments.forgetful)


def _tell(result: Result) -> None:
    said = "exact" if result.exact else f"NOT EXACT: {result.verdict}; {result.failure}"
    print(f"{time.strftime('%H:%M:%S')} {result.seconds:6.1f} s  {result.case!s:<60} {said}", flush=True)


def _ended(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(1)  # what has been started is ended on the way out


def main() -> int:
    signal.signal(signal.SIGTERM, _ended)
    arguments = _arguments()
    if arguments.list:
        print("\n".join(map(str, every_case())))
        return 0
    began = time.monotonic()
    queries = _chosen(arguments)
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="tritonmq-crashes-") as made,
        _ground(arguments, Path(made)) as ground,
    ):
        for cases in queries:
            results += ground.run(cases, arguments.seed, _tell)
            if arguments.table is not None:  # after each query: a run may be ended early
                seconds = time.monotonic() - began
                arguments.table.write_text(
                    table(results, seconds, ground.lives, arguments.crashes, arguments.seed, os.cpu_count() or 1)
                )
    crashes, duplicates, losses, others = totals(results)
    print(
        f"{crashes} crashes in {len(results)} cases, {ground.lives} lives of drivers, {time.monotonic() - began:.0f} "
        f"s: {duplicates} duplicates, {losses} losses, {others} other failures"
    )
    return 0 if results and all(result.exact for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
