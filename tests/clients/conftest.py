"""The clusters of tests/cluster, for the tests of clients in other languages, and the Go client's programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.conftest import pytest_runtest_makereport, start_cluster

__all__ = ["pytest_runtest_makereport", "start_cluster"]

CLIENT: Final = Path(__file__).parents[2] / "clients" / "go"
BUILD_S: Final = 900

_RACE: Final = [] if os.environ.get("TRITONMQ_GO_RACE") == "0" else ["-race"]
FLAGS: Final = [*_RACE, "-gcflags=all=-dwarf=false", "-ldflags=-w"]
"""For all that is compiled, so that nothing is compiled twice: with the race detector, and without what only a debugger
reads. The Makefile vets with the same."""


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the client's programs are."""
    directory = tmp_path_factory.mktemp("go")
    subprocess.run([go(), "build", *FLAGS, "-o", directory, "./cmd/..."], cwd=CLIENT, check=True, timeout=BUILD_S)
    return directory


def go() -> str:
    found = shutil.which("go") or "/usr/local/go/bin/go"
    assert Path(found).exists(), "there is no Go: install 1.26 or newer, or put it on the PATH"
    return found
