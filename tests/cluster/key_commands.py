"""A file of keys, and `tritonmq keys` as operators give it; in a process, too, which can be killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from mq_broker.storage.key_file import KeyFile, read_key_file, write_key_file
from mq_cli.access.keys import keys


class KeyCommands:
    """Owns a file of keys for brokers below one directory."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path / "keys.json"
        content = KeyFile()
        content.add("default")
        write_key_file(self.path, content)

    @property
    def reference(self) -> str:
        return f"file:{self.path}"

    @property
    def newest(self) -> str:
        return read_key_file(self.path).current["default"]

    @property
    def older(self) -> list[str]:
        content = read_key_file(self.path)
        return sorted(content.keys.keys() - content.current.values())

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "mq_cli.main", "keys", *words, "--encrypt", self.reference]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def run(self, *words: str, may_refuse: bool = False) -> str:
        """What it said; in this process, which takes no second to begin. Raises `AssertionError` if it failed."""
        done = CliRunner().invoke(keys, [*words, "--encrypt", self.reference])
        told = f"{done.output}{done.exception or ''}"
        assert done.exit_code in ((0, 1) if may_refuse else (0,)), told
        return told


def of(*directories: Path) -> list[str]:
    """As `--data` of each."""
    return [word for directory in directories for word in ("--data", str(directory))]
