"""Measures what is promised of security: `python -m benchmarks.security`, or `--quick` for a look. Prints a table; a
full run writes it to benchmarks/SECURITY.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import mq_client  # noqa: F401 - before anything imports gRPC
from benchmarks.bench.machine import machine
from benchmarks.security import attacks, gate, sockets, strangers, taken_away, tls
from benchmarks.security.ground import PLAIN, TLS, Ground, Row

PAGE: Final = Path(__file__).parents[1] / "SECURITY.md"


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    gate_calls: int
    mebibytes: int
    messages: int
    rounds: int
    tries: int
    attack_s: float
    connections: int
    clients: int


FULL: Final = Scale(100_000, 300, 2_000, 5, 100, 10.0, 20_000, 1_000)
QUICK: Final = Scale(10_000, 20, 100, 1, 5, 1.0, 200, 50)


def sections(scale: Scale, directory: Path) -> dict[str, Callable[[], list[Row]]]:
    """What can be measured, by name."""

    def beside(measure: Callable[[list[Ground]], list[Row]]) -> list[Row]:
        with ExitStack() as opened:
            grounds = [opened.enter_context(Ground(directory / f"{mode}-3", mode, 3)) for mode in (PLAIN, TLS)]
            return measure(grounds)

    def on_three(measure: Callable[[Ground], list[Row]]) -> list[Row]:
        with Ground(directory / f"three-{time.time_ns()}", TLS, 3) as ground:
            return measure(ground)

    def on_one(measure: Callable[[Ground], list[Row]], *, zookeeper: bool) -> list[Row]:
        with Ground(directory / f"one-{time.time_ns()}", TLS, 1, zookeeper=zookeeper) as ground:
            return measure(ground)

    return {
        "gate": lambda: gate.measured(scale.gate_calls),
        "tls": lambda: beside(
            lambda both: tls.large(both, scale.mebibytes, scale.rounds) + tls.small(both, scale.messages, scale.rounds)
        ),
        "sockets": lambda: sockets.alone(scale.mebibytes, scale.rounds),
        "back": lambda: on_one(lambda ground: tls.clients_back(ground, scale.clients), zookeeper=False),
        "rights": lambda: on_three(lambda ground: taken_away.measured(ground, scale.tries)),
        "attacks": lambda: on_one(lambda ground: attacks.measured(ground, scale.attack_s), zookeeper=False),
        "strangers": lambda: on_one(lambda ground: strangers.measured(ground, scale.connections), zookeeper=True),
    }


def page(rows: list[Row], facts: dict[str, str], command: str, title: str = "What security costs") -> str:
    """As Markdown."""
    lines = [f"# {title}", "", f"Made by `{command}`. Clients and brokers share the machine.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "| what | measured | promised | holds |", "|---|---|---|---|"]
    words = {True: "yes", False: "**no**", None: ""}
    lines += [f"| {row.what} | {row.measured} | {row.promised} | {words[row.holds]} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.security", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", default="gate,tls,sockets,back,rights,attacks,strangers", help="with commas between")
    parser.add_argument("--connections", type=int, help="of strangers, at each port")
    parser.add_argument("--page", type=Path, help="write the table there; a full run writes benchmarks/SECURITY.md")
    given = parser.parse_args()
    scale = QUICK if given.quick else FULL
    if given.connections:
        scale = Scale(**{**scale.__dict__, "connections": given.connections})
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tritonmq-security-") as directory:
        facts = machine(Path(directory))
        known = sections(scale, Path(directory))
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
    made = page(rows, facts, "python -m benchmarks.security" + "".join(f" {each}" for each in sys.argv[1:]))
    print(made)
    target = given.page or (PAGE if not given.quick and chosen == list(known) else None)
    if target is not None:
        target.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
