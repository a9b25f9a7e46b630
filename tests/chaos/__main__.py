"""`python -m tests.chaos --minutes N`: real brokers, ZooKeeper and clients under fire, and a checker that judges what
they saw.

Ends with 1 if anything was found; the history is kept then, and the command that runs the same faults again is printed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import switch
from tests.chaos.nemesis import NEMESES
from tests.chaos.report import save, story
from tests.chaos.run import Run, Settings

DURABILITIES = ("fsync", "os", "memory")


def parse() -> tuple[argparse.Namespace, tuple[str, ...]]:
    """The arguments, and the nemeses among them."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of faults, in all; shared among the durabilities")
    parser.add_argument("--seed", type=int, help="of kinds, victims and times; one is chosen and printed if not given")
    parser.add_argument("--durability", default="all", choices=(*DURABILITIES, "all"))
    parser.add_argument("--nemesis", default=",".join(NEMESES), metavar="A,B", help=f"of {', '.join(NEMESES)}")
    parser.add_argument("--brokers", type=int, default=3, choices=(3, 4, 5), help="from 4 on replicas are moved, too")
    parser.add_argument("--rate", type=float, default=20.0, help="operations a second of each thread that writes")
    parser.add_argument(
        "--session-ms", type=int, default=2_000, help="brokers' sessions with ZooKeeper; longer on a busy machine"
    )
    parser.add_argument(
        "--spark", action="store_true", help="a Spark query too, topic to topic, killed and started again"
    )
    parser.add_argument(
        "--secure", action="store_true", help="everything over TLS, with rights, as tests/switch.py does"
    )
    parser.add_argument(
        "--encrypt",
        action="store_true",
        help="brokers seal what they write; keys are rotated, rewrapped with kill -9 on the way, and retired",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep histories, data and logs there")
    parser.add_argument("--save", action="store_true", help="append rows to tests/chaos/RESULTS.md")
    arguments = parser.parse_args()
    nemeses = tuple(arguments.nemesis.split(","))
    if unknown := set(nemeses) - set(NEMESES):
        parser.error(f"no such nemesis: {', '.join(sorted(unknown))}; there are {', '.join(NEMESES)}")
    return arguments, nemeses


def main() -> int:
    arguments, nemeses = parse()
    durabilities = DURABILITIES if arguments.durability == "all" else (arguments.durability,)
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    if arguments.secure:
        switch.turn_on(Path(tempfile.mkdtemp(prefix="tritonmq-chaos-")) / "certs")
    failed = 0
    for durability in durabilities:
        minutes = arguments.minutes / len(durabilities)
        if arguments.keep is not None:
            directory = arguments.keep / f"{durability}-{seed}"
        else:
            directory = Path(tempfile.mkdtemp(prefix="tritonmq-chaos-"))
        settings = Settings(
            directory=directory,
            seed=seed,
            durability=durability,
            seconds=minutes * 60,
            brokers=arguments.brokers,
            rate=arguments.rate,
            session_ms=arguments.session_ms,
            nemeses=nemeses,
            spark=arguments.spark,
            encrypt=arguments.encrypt,
        )
        command = f"python -m tests.chaos --minutes {minutes:g} --durability {durability} --seed {seed}"
        command += f" --brokers {arguments.brokers}" if arguments.brokers != 3 else ""
        command += f" --nemesis {arguments.nemesis}" if nemeses != tuple(NEMESES) else ""
        command += f" --rate {arguments.rate:g}" if arguments.rate != 20 else ""
        command += f" --session-ms {arguments.session_ms}" if arguments.session_ms != 2_000 else ""
        command += " --spark" if arguments.spark else ""
        command += " --encrypt" if arguments.encrypt else ""
        command += " --secure" if arguments.secure else ""
        print(f"{command}  (in {directory})", flush=True)
        outcome = Run(settings).go()
        print(story(outcome), flush=True)
        if arguments.save:
            save(outcome, version(), command)
        if not outcome.clean:
            failed += 1
            print(f"FAILED. The history: {outcome.history}; judge it again: python -m tests.history {outcome.history}")
            print(f"The same faults again: {command}", flush=True)
        elif arguments.keep is None:
            shutil.rmtree(directory)
    return 1 if failed else 0


def version() -> str:
    """The commit that runs."""
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return told.stdout.strip() or "?"


if __name__ == "__main__":
    sys.exit(main())
