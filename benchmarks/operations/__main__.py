"""Measures what is promised of operating: `python -m benchmarks.operations`, or `--quick` for a look. Prints a table; a
full run writes it to benchmarks/OPERATIONS.md. A full run takes less than ten minutes on an idle machine."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import mq_client  # noqa: F401 - before anything imports gRPC
from benchmarks.bench.machine import machine
from benchmarks.operations import hot_path, idle, plugin
from benchmarks.security.__main__ import page
from benchmarks.security.ground import Row

PAGE: Final = Path(__file__).parents[1] / "OPERATIONS.md"
TITLE: Final = "What being watched costs"


def sections(directory: Path, *, quick: bool) -> dict[str, Callable[[], list[Row]]]:
    """What can be measured, by name."""
    return {
        "plugin": lambda: plugin.measured(directory / "plugin", 1 if quick else 5),
        "hot-path": lambda: hot_path.measured(directory, 200 if quick else 5_000, 1 if quick else 5),
        "memory": lambda: [idle.memory_of_http(directory / "memory", 1 if quick else 5)],
        "idle": lambda: idle.measured(directory, 100 if quick else 10_000),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operations", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", default="plugin,hot-path,memory,idle", help="with commas between")
    given = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tritonmq-operations-", ignore_cleanup_errors=True) as directory:
        facts = machine(Path(directory))
        known = sections(Path(directory), quick=given.quick)
        chosen = given.rows.split(",")
        for name in chosen:
            if name not in known:
                parser.error(f"--rows knows {', '.join(known)}, not {name!r}")
        for name in chosen:
            print(f"measuring {name}", file=sys.stderr, flush=True)
            found = known[name]()
            rows += found
            for row in found:
                print(f"  {row.what}: {row.measured} ({row.promised})", file=sys.stderr, flush=True)
    made = page(rows, facts, "python -m benchmarks.operations" + "".join(f" {each}" for each in sys.argv[1:]), TITLE)
    print(made)
    if not given.quick and chosen == list(known):
        PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
