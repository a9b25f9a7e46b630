"""What is known of the methods of mq.proto."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mq_protocol
from mq_protocol import mq_pb2 as pb
from mq_protocol.methods import BROKER, PEER


def test_the_contract_has_no_other_services() -> None:
    assert {service.full_name for service in pb.DESCRIPTOR.services_by_name.values()} == {BROKER.name, PEER.name}


@pytest.mark.parametrize(("name", "attribute"), [("Metadata", "metadata"), ("AbortTransaction", "abort_transaction")])
def test_a_method_is_called_in_python_as_its_name_says(name: str, attribute: str) -> None:
    assert BROKER.methods[name].attribute == attribute


def test_a_path_of_a_method_that_there_is_not_is_refused() -> None:
    assert BROKER.path("Fetch") == "/tritonmq.v1.Broker/Fetch"
    with pytest.raises(KeyError):
        BROKER.path("Fetsh")


def generated_stubs(folder: Path) -> Any:
    """What gRPC's own generator makes of mq.proto, as it would for any language."""
    pytest.importorskip("grpc_tools")
    root = Path(mq_protocol.__file__).parents[1]
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{root}",
        f"--grpc_python_out={folder}",
        "mq_protocol/mq.proto",
    ]
    subprocess.run(command, check=True, capture_output=True, env=dict(os.environ))
    code = folder / "mq_protocol" / "mq_pb2_grpc.py"
    spec = importlib.util.spec_from_file_location("stubs_of_mq", code)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
