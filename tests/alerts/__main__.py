"""`python -m tests.alerts --table tests/ALERTS.md`: causes every alert that can be caused here, on real brokers with a
real Prometheus, and writes down how long each took to fire. Ends with 1 if one did not."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from tests.alerts.causes import ACTS, Act, prepared
from tests.alerts.table import page, quiet_rows, told
from tests.alerts.world import World, small_disk
from tests.deploy.monitoring import rules


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.alerts", description=__doc__)
    parser.add_argument("--table", type=Path, help="write the page there")
    parser.add_argument("--only", help="only what is to raise these, with commas between; the others' rows stay")
    arguments = parser.parse_args()
    only = set(arguments.only.split(",") if arguments.only else rules())
    acts = [act for act in ACTS if only.intersection(act.alerts)]
    took_s = (
        told(arguments.table.read_text()) if arguments.only and arguments.table and arguments.table.exists() else {}
    )
    silent: list[str] = []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tritonmq-alerts-")))
        world = World(directory, stack.enter_context(small_disk(directory)))
        stack.enter_context(world.running())
        prepared(world)
        for act in acts:
            silent += _caused(world, act, took_s)
    if arguments.table:
        kept = quiet_rows(arguments.table.read_text()) if arguments.table.exists() else []
        arguments.table.write_text(page(took_s, kept))
    print(f"silent: {', '.join(silent)}" if silent else "each of them fired")
    return 1 if silent else 0


def _caused(world: World, act: Act, took_s: dict[str, float]) -> list[str]:
    """Those that did not fire."""
    silent = []
    for alert in act.alerts:
        took_s.pop(alert, None)
    world.calm(*act.alerts)
    began = time.monotonic()
    with act.cause(world):
        for alert in act.alerts:
            try:
                took_s[alert] = world.seconds_until(alert, began)
            except AssertionError:
                silent.append(alert)
            print(f"{alert}: {took_s.get(alert, float('nan')):.0f} s", flush=True)
    return silent


if __name__ == "__main__":
    sys.exit(main())
