"""Gets what is measured against: Kafka's brokers and tools and Spark's connector by Maven, the Python clients by pip.

Into `build/kafka`, once; what is there and was fetched for the same versions stays. Which registries are asked is
Maven's and pip's own affair: nothing here names one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
CACHE: Final = ROOT / "build" / "kafka"
FETCH_TIMEOUT_S: Final = 900.0
_MARK: Final = "fetched"
_ERROR_CHARACTERS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where things are: a folder of jars for brokers and tools, one for Spark, and the Python that has the clients."""

    server_jars: Path
    connector_jars: Path
    python: Path

    @property
    def classpath(self) -> str:
        return str(self.server_jars / "*")

    def versions(self) -> dict[str, str]:
        """What is measured against, as its files are named."""
        found = {"Kafka": _version(self.server_jars, r"kafka_2\.13-(.+)\.jar")}
        found["Spark's Kafka connector"] = _version(self.connector_jars, r"spark-sql-kafka-0-10_2\.13-(.+)\.jar")
        found["its Kafka client"] = _version(self.connector_jars, r"kafka-clients-(.+)\.jar")
        pins = (line.partition("==") for line in (HERE / "requirements.txt").read_text().splitlines() if "==" in line)
        return found | {name: version for name, _, version in pins}


def fetch(watch: Callable[[str], None] = lambda _what: None) -> Fetched:
    """Everything there is to fetch. Raises `click.ClickException` saying which tool said what."""
    server = _jars("server", "Kafka", watch)
    connector = _jars("connector", "Spark's Kafka connector", watch)
    return Fetched(server, connector, _python(watch))


def _jars(pom: str, what: str, watch: Callable[[str], None]) -> Path:
    source, folder = HERE / "poms" / f"{pom}.xml", CACHE / pom
    if _is_there(folder, source):
        return folder
    watch(f"fetching {what}")
    if shutil.which("mvn") is None:
        raise click.ClickException("Maven (mvn) is not there, and it is what fetches Kafka: install it")
    shutil.rmtree(folder, ignore_errors=True)
    # From a folder of its own: Maven would take settings and projects from the one that it is started in.
    folder.mkdir(parents=True)
    arguments = ["mvn", "-q", "-B", "-f", str(source), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    _run([*arguments, f"-DoutputDirectory={folder}"], folder)
    _mark(folder, source)
    return folder


def _python(watch: Callable[[str], None]) -> Path:
    source, folder = HERE / "requirements.txt", CACHE / "python"
    python = folder / "bin" / "python"
    if not _is_there(folder, source):
        watch("fetching Kafka's Python clients")
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", str(folder)], folder.parent)
        _run([str(python), "-m", "pip", "install", "-q", "-r", str(source)], folder.parent)
        _mark(folder, source)
    return python


def _run(arguments: list[str], directory: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        arguments, cwd=directory, env=environment, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S
    )
    if done.returncode:
        raise click.ClickException(
            f"{' '.join(arguments[:4])} failed: {(done.stdout + done.stderr)[-_ERROR_CHARACTERS:]}"
        )


def _fingerprint(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def _is_there(folder: Path, source: Path) -> bool:
    mark = folder / _MARK
    return mark.is_file() and mark.read_text() == _fingerprint(source)


def _mark(folder: Path, source: Path) -> None:
    (folder / _MARK).write_text(_fingerprint(source))


def _version(folder: Path, pattern: str) -> str:
    found = (re.fullmatch(pattern, path.name) for path in folder.iterdir())
    return next((match[1] for match in found if match), "?")
