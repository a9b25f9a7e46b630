"""Fresh virtual environments, of any Python that is on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
INSTALL_SECONDS: Final = 900


class Failed(Exception):
    """A command that should have worked did not: what it printed is in the message."""


def run(
    command: Sequence[str | Path], *, timeout_s: float, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """What the command prints on standard output. Raises `Failed` with both outputs' ends, also after `timeout_s`."""
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0]} did not end within {timeout_s} s: {' '.join(map(str, command))}") from error
    if done.returncode:
        raise Failed(
            f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    return done.stdout


def python(version: str) -> Path | None:
    """An interpreter of that version, e.g. "3.12"; None if there is none here. A pyenv's are found without being
    activated."""
    for candidate in _candidates(version):
        if not candidate.exists():
            continue
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run([candidate, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        if found.returncode == 0 and found.stdout.strip() == version:
            return candidate
    return None


def _candidates(version: str) -> Iterator[Path]:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        yield Path(sys.executable)
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield Path(on_path)
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(versions.glob(f"{version}.*/bin/python{version}"), reverse=True)


class Environment:
    """A virtual environment in a directory of its own, made anew."""

    def __init__(self, folder: Path, interpreter: Path | None) -> None:
        """`interpreter`: makes the environment; None: it is there."""
        self.folder = folder
        if interpreter is not None:
            run([interpreter, "-m", "venv", "--clear", folder], timeout_s=120)

    @classmethod
    def at(cls, folder: Path) -> Environment:
        """One that has been made before."""
        return cls(folder, None)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def command(self, name: str) -> Path:
        return self.folder / "bin" / name

    def install(self, *requirements: str | Path) -> None:
        """Raises `Failed` with pip's words."""
        run(
            [self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements],
            timeout_s=INSTALL_SECONDS,
        )

    def versions(self) -> dict[str, str]:
        """Of everything that is installed, by lower-case name."""
        listed = run([self.python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"], timeout_s=60)
        pairs = (line.partition("==") for line in listed.splitlines() if "==" in line)
        return {name.lower(): version for name, _, version in pairs}

    def variables(self) -> dict[str, str]:
        """The process's environment without what would lead it back to another one's packages."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYSPARK", "SPARK_HOME"))
        }
        return {**kept, "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
