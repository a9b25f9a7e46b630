"""Flip bits of a sealed journal, and write what came of it: `python -m tests.at_rest --flips 100000`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.at_rest.flips import run, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts, wrong = run(Path(folder) / "journal", arguments.flips, arguments.seed)
    print(table(counts))
    print(f"{sum(counts.values()):,} flips, {len(wrong)} that came to what they should not")
    for line in wrong[:20]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
