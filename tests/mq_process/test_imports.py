"""What a process is kept from importing."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import pyarrow
from mq_process.imports import without_pandas
{before}
without_pandas()
batch = pyarrow.RecordBatch.from_pydict({{"n": [1, 2, 3]}})
print(batch.take(pyarrow.array([2])).column("n").to_pylist(), "pandas" in sys.modules)
"""


def told(before: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)], capture_output=True, text=True, timeout=60, check=True
    )
    return run.stdout.strip()


def test_arrays_are_made_without_pandas() -> None:
    assert told("") == "[3] False"


def test_a_process_that_has_imported_pandas_keeps_it() -> None:
    assert told("import pandas") == "[3] True"
