"""Spark Connect: a client sends plans to a real server of PySpark's, on whose side the source and the sink are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import switch

pytestmark = pytest.mark.long

JOB = Path(__file__).parents[2] / "release" / "spark_job.py"


@pytest.mark.timeout(320)
def test_batches_and_streams_are_read_and_written_once_by_a_connect_client() -> None:
    pytest.importorskip("grpc_status", reason="what PySpark's Connect client needs is in requirements.lock")
    done = subprocess.run(switch.script(JOB, "--connect"), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads(done.stdout.strip().splitlines()[-1])
    assert (rows["connect"], rows["read"], rows["streamed"], rows["written"]) == (True, 50, 50, 10)
