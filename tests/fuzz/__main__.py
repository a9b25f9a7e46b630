"""Looks for inputs that break a target: `python -m tests.fuzz filters --minutes 5`. What it finds goes into the
corpus. `all` stands for every target, one after another; `--guided` lets Atheris look (guided.py)."""

from __future__ import annotations

import argparse
import hashlib
import secrets
import sys
import tempfile
from pathlib import Path

from tests.fuzz.harness import CORPUS, TARGETS, Found, child, run


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        targets, seed, cases, seconds, current, replay = sys.argv[2:]
        child(targets.split(","), int(seed), int(cases), float(seconds), Path(current), replay=replay == "1")
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=(*TARGETS, "all"))
    parser.add_argument("--minutes", type=float, default=1.0, help="of each target")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--guided", action="store_true")
    given = parser.parse_args()
    failed = 0
    for target in TARGETS if given.target == "all" else (given.target,):
        with tempfile.TemporaryDirectory() as directory:
            if given.guided:
                from tests.fuzz.guided import guided

                found = guided(target, given.seed, Path(directory), 60 * given.minutes)
            else:
                found = run([target], given.seed, Path(directory), seconds=60 * given.minutes)
        failed += _told(target, given.seed, found)
    return int(failed > 0)


def _told(target: str, seed: int, found: Found) -> bool:
    """Whether it failed; what failed is kept."""
    if found.failed is None:
        words = ("tried", "places reached") if found.guided else ("accepted", "refused")
        told = ", ".join(f"{number} {word}" for number, word in zip(found.counts[target], words, strict=True))
        print(f"{target}, seed {seed}: {told}, no failure", flush=True)
        return False
    kept = CORPUS / target / f"found-{hashlib.sha256(found.failed).hexdigest()[:12]}"
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(found.failed)
    print(f"{target}, seed {seed}: FAILED, the input is in {kept}\n{found.failed[:300]!r}\n{found.report}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
