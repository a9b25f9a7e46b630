"""Atheris looks for inputs that reach new lines of our code: `python -m tests.fuzz frames --guided`.

It begins with the corpus and with inputs that the target makes by itself, and alters bytes. It is a tool for Linux that
is not among the packages which `make` installs: `make fuzz` puts it into `build/atheris`.
"""

from __future__ import annotations

import importlib
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.fuzz.harness import CORPUS, Cases, Found, corpus, failed

SEEDS: Final = 300
GROWTH_BYTES_MAX: Final = 1 << 30
"""Atheris keeps in memory what reached new lines."""


def guided(target: str, seed: int, directory: Path, seconds: float) -> Found:
    """Runs Atheris in a child. Raises `RuntimeError` if it is not there."""
    current, seeds = directory / "input", directory / "seeds"
    current.write_bytes(b"")
    seeds.mkdir()
    module, chance = importlib.import_module(f"tests.fuzz.{target}"), random.Random(seed)
    kept = [path.read_bytes() for path in corpus(target)]
    for number, data in enumerate([*kept, *(module.generate(chance) for _ in range(SEEDS))]):
        (seeds / str(number)).write_bytes(data)
    command = [
        *(sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.guided", target, str(current), str(seeds)),
        *(
            f"-max_total_time={int(seconds)}",
            f"-seed={seed or 1}",
            f"-artifact_prefix={directory}/",
            "-print_final_stats=1",
        ),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300 + 2 * seconds, check=False, cwd=CORPUS.parents[2]
    )
    if "No module named 'atheris'" in done.stderr:
        raise RuntimeError("Atheris is not there: `make fuzz` installs it where there is a wheel of it for this Python")
    runs = re.search(r"number_of_executed_units: +(\d+)", done.stderr)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    if done.returncode or runs is None:
        return failed(current, f"exit code {done.returncode}\n{done.stderr[-4000:]}")
    return Found({target: (int(runs[1]), int(covered[-1]) if covered else 0)}, guided=True)


def main(target: str, current: str, *arguments: str) -> None:
    """The child."""
    import atheris  # type: ignore[import-not-found, unused-ignore]

    with atheris.instrument_imports(include=["mq_protocol", "mq_broker", "mq_console"]):
        module = importlib.import_module(f"tests.fuzz.{target}")
    with open(current, "r+b", buffering=0) as note:
        cases = Cases(target, module, note, GROWTH_BYTES_MAX)
        cases.warm_up()

        def one(data: bytes) -> Any:
            cases.over([data])

        atheris.Setup([sys.argv[0], *arguments], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
