"""The generated protobuf code is what the committed mq.proto generates, and runs on the oldest protobuf that is
admitted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mq_protocol

PACKAGE = Path(mq_protocol.__file__).parent
ROOT = Path(__file__).parents[2]
VERSION = re.compile(
    r"^# Protobuf Python Version: .*$|(?<=_runtime_version\.Domain\.PUBLIC,)\s+(\d+),\s+(\d+),\s+(\d+),", re.MULTILINE
)
"""Where the code says which protoc has made it: nothing else differs between the one of `make proto` and this
environment's."""


@pytest.mark.parametrize("name", ["mq_pb2.py", "mq_pb2.pyi"])
def test_generated_code_is_current(name: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    options = [f"-I{PACKAGE.parent}", f"--python_out={tmp_path}", f"--mypy_out={tmp_path}"]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *options, "mq_protocol/mq.proto"],
        check=True,
        capture_output=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    generated, committed = ((folder / name).read_text() for folder in (tmp_path / "mq_protocol", PACKAGE))
    assert VERSION.sub("", generated) == VERSION.sub("", committed), "run `make proto` and commit what it writes"


def test_generated_code_asks_for_no_newer_protobuf_than_the_project_does() -> None:
    (bound,) = (
        dependency.removeprefix("protobuf>=")
        for dependency in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        if dependency.startswith("protobuf>=")
    )
    made_by = [found for found in VERSION.findall((PACKAGE / "mq_pb2.py").read_text()) if all(found)]
    assert len(made_by) == 1
    assert ".".join(made_by[0][:2]) == bound, "run `make proto`, which uses the oldest protoc that will do"
