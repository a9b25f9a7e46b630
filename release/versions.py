"""Tries the package under other versions of Python, of PySpark and of its dependencies, each in a fresh environment.

python -m release.versions [NAME …]     every row, or those that are named; what came of them goes into docs/versions.md

A row is one wheel of this tree, installed beside the versions that the row names. Then `release/spark_job.py` runs
there (batch read, stream and restart, batch write, on a real broker), or without Spark what `make dist` tries.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from release.dist import copied, try_out
from release.environments import ROOT, Environment, Failed, python, run

TABLE: Final = ROOT / "docs" / "versions.md"
JOB_SECONDS: Final = 300
SHOWN: Final = ("pyarrow", "grpcio", "protobuf", "numpy")


@dataclass(frozen=True)
class Row:
    """One environment. `extra` of the wheel's; `beside`: requirements that pin what is tried; `refused`: words of the
    error that must come instead of rows.
    """

    name: str
    python: str
    extra: str = "spark"
    beside: tuple[str, ...] = ()
    connect: bool = False
    refused: str = ""


def lowest_bounds() -> tuple[str, ...]:
    """Every dependency at the lowest version that pyproject.toml admits."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return tuple(f"{requirement.replace('>=', '==')}.*" for requirement in project["dependencies"])


ROWS: Final = (
    Row("python-3.11", "3.11", beside=("pyspark==4.3.*",)),
    Row("python-3.12", "3.12", beside=("pyspark==4.3.*",)),
    Row("python-3.13", "3.13", beside=("pyspark==4.3.*",)),
    Row("python-3.14", "3.14", beside=("pyspark==4.3.*",)),
    Row("pyspark-4.2", "3.11", beside=("pyspark==4.2.0",)),
    Row("pyspark-4.2-newest-python", "3.13", beside=("pyspark==4.2.*",)),
    Row("connect", "3.11", extra="connect", beside=("pyspark==4.3.*",), connect=True),
    Row("connect-pyspark-4.2", "3.13", extra="connect", beside=("pyspark==4.2.*",), connect=True),
    Row("lowest-bounds", "3.11", extra="", beside=lowest_bounds()),
    Row(
        "lowest-bounds-with-spark",
        "3.11",
        beside=(*(each for each in lowest_bounds() if "pyarrow" not in each), "pyarrow==18.*"),
    ),
    Row(
        "pyspark-4.1",
        "3.11",
        extra="",
        beside=("pyspark==4.1.*", "pandas<3"),
        refused="needs PySpark 4.2 or later, and this is",
    ),
)


def main(arguments: Sequence[str]) -> int:
    names = [each for each in arguments if not each.startswith("-")]
    unknown = set(names) - {row.name for row in ROWS}
    if unknown:
        raise Failed(f"no such row: {', '.join(sorted(unknown))} (rows are: {', '.join(row.name for row in ROWS)})")
    lines, failed = {}, False
    with tempfile.TemporaryDirectory(prefix="tritonmq-versions-") as scratch:
        wheel = built(Path(scratch))
        for row in ROWS:
            if names and row.name not in names:
                continue
            try:
                outcome, versions = tried(row, wheel, Path(scratch))
            except Failed as error:
                outcome, versions, failed = "**fails**", {}, True
                print(f"{row.name}: {error}", file=sys.stderr)
            print(f"{row.name}: {outcome}", flush=True)
            lines[row.name] = line(row, outcome, versions)
    before = kept(TABLE.read_text()) if TABLE.exists() else {}
    TABLE.write_text(page({**before, **lines}))
    return 1 if failed else 0


def kept(text: str) -> dict[str, str]:
    """The rows that a page has, by name."""
    return {found[1]: found[0] for found in re.finditer(r"^\| `([\w.-]+)` \|.*$", text, re.MULTILINE)}


def built(scratch: Path) -> Path:
    """A wheel of this tree."""
    run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", scratch / "wheel", copied(scratch / "tree")],
        timeout_s=300,
    )
    (wheel,) = (scratch / "wheel").glob("*.whl")
    return wheel


def tried(row: Row, wheel: Path, scratch: Path) -> tuple[str, dict[str, str]]:
    """What came of it, and the versions that were there. Raises `Failed`."""
    interpreter = python(row.python)
    if interpreter is None:
        return "not tried: this Python was not on the machine", {}
    folder = scratch / "environment"
    if not row.extra and not row.refused:
        try_out(
            wheel,
            folder,
            tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
            interpreter,
            row.beside,
        )
        return "works: produce, consume, administer", Environment.at(folder).versions()
    environment = Environment(folder, interpreter)
    environment.install(f"{wheel}[{row.extra}]" if row.extra else wheel, *row.beside)
    versions = environment.versions()
    job: list[str | Path] = [
        environment.python,
        ROOT / "release" / "spark_job.py",
        *(["--connect"] if row.connect else []),
    ]
    try:
        printed = run(job, timeout_s=JOB_SECONDS, env=environment.variables(), cwd=scratch)
    except Failed as error:
        if row.refused and row.refused in str(error):
            return "refused by name", versions
        raise
    if row.refused:
        raise Failed(f"{row.name} was not refused: {printed}")
    rows = json.loads(printed.strip().splitlines()[-1])
    if rows["pyspark"] != versions["pyspark"] or rows["python"].rpartition(".")[0] != row.python:
        raise Failed(f"{row.name} ran something else: {rows}")
    return "works: batch and stream, read and write", versions


def line(row: Row, outcome: str, versions: dict[str, str]) -> str:
    spark = versions.get(
        "pyspark", "none" if not row.extra and not row.refused else row.beside[0].removeprefix("pyspark==")
    )
    what = "Spark Connect" if row.connect else "lowest versions admitted" if row.name.startswith("lowest") else ""
    shown = " ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions)
    return f"| `{row.name}` | {row.python} | {spark} | {what} | {outcome} | {shown} |"


def page(lines: Mapping[str, str]) -> str:
    """The table's page, of the rows that there are lines of."""
    return "\n".join(
        [
            "# Versions that work",
            "",
            "`make versions` writes this page. Each row is a fresh environment with the wheel of this tree and the "
            "row's versions.",
            "With Spark it does a batch read, a stream with a restart, and a batch write, on a real broker. Without "
            "Spark it runs",
            "a broker, produces and consumes. `make test` runs on the versions of `requirements.lock`.",
            "",
            "| row | Python | PySpark | | outcome | with |",
            "|---|---|---|---|---|---|",
            *(lines[row.name] for row in ROWS if row.name in lines),
            "",
            "PySpark below 4.2 lacks parts that streams need. It is refused with an error that names both versions.",
            "",
        ]
    )


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Failed as error:
        sys.exit(f"make versions: {error}")
