"""`python -m tests.history FILE...`: judge saved histories. Ends with 1 if anything was found, 2 if one cannot be
judged."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.history.checker import judge
from tests.history.recording import HistoryError, read


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="JSON lines, as tests/history/recording.py describes them"
    )
    parser.add_argument("--each", type=int, default=10, help="how many anomalies of each kind to show")
    parsed = parser.parse_args(arguments)
    worst = 0
    for path in parsed.files:
        began = time.monotonic()
        try:
            verdict = judge(read(path))
        except HistoryError as error:
            print(f"{path}: cannot be judged: {error}", file=sys.stderr)
            worst = 2
            continue
        seen = ", ".join(f"{op} {count:,}" for op, count in sorted(verdict.operations.items()))
        print(f"{path}: {verdict.operations.total():,} operations in {time.monotonic() - began:.1f} s ({seen})")
        print(verdict.story(parsed.each))
        worst = max(worst, 0 if verdict.clean else 1)
    return worst


if __name__ == "__main__":
    sys.exit(main())
