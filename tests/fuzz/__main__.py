"""Looks for inputs that break a target: `python -m tests.fuzz filters --minutes 5`. What it finds goes into the
corpus."""

from __future__ import annotations

import argparse
import hashlib
import secrets
import sys
import tempfile
from pathlib import Path

from tests.fuzz.harness import CORPUS, TARGETS, child, run


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        target, seed, cases, seconds, current, replay = sys.argv[2:]
        child(target, int(seed), int(cases), float(seconds), Path(current), replay=replay == "1")
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = run(given.target, given.seed, Path(directory), seconds=60 * given.minutes)
    if found.failed is None:
        print(f"{given.target}, seed {given.seed}: {found.accepted} accepted, {found.refused} refused, no failure")
        return 0
    kept = CORPUS / given.target / f"found-{hashlib.sha256(found.failed).hexdigest()[:12]}"
    kept.write_bytes(found.failed)
    print(f"{given.target}, seed {given.seed}: FAILED, the input is in {kept}\n{found.failed!r}\n{found.report}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
