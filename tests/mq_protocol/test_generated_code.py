"""The generated protobuf code is what the committed mq.proto generates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mq_protocol

PACKAGE = Path(mq_protocol.__file__).parent


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
    assert (tmp_path / "mq_protocol" / name).read_text() == (PACKAGE / name).read_text(), (
        "run `make proto` and commit what it writes"
    )
