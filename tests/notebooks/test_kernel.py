"""What runs the notebooks: a Java that did not start is tried once more, and every other error is an error at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from tests.notebooks.kernel import NO_JAVA, Kernel, shown


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with Kernel() as running:
        yield running


def notebook(folder: Path, *, error: str, times: int) -> Path:
    """Of one cell, which raises `error` the first `times` that it runs, and prints how often it has run."""
    form: Any = nbformat.v4
    source = f"""
from pathlib import Path
count = Path({str(folder / "count")!r})
count.write_text(count.read_text() + "x" if count.exists() else "x")
if len(count.read_text()) <= {times}:
    raise RuntimeError({error!r})
print(len(count.read_text()))
"""
    path = folder / "notebook.ipynb"
    write: Any = nbformat.write
    write(form.new_notebook(cells=[form.new_code_cell(source)]), path)
    return path


def test_a_notebook_whose_java_did_not_start_is_run_a_second_time(kernel: Kernel, tmp_path: Path) -> None:
    run = kernel.run(notebook(tmp_path, error=f"[{NO_JAVA}] Java gateway process exited", times=1))
    assert shown(run.cells[0]) == ["2\n"]


@pytest.mark.parametrize(("error", "runs"), [(f"[{NO_JAVA}] again", 2), ("column 'x' is not there", 1)])
def test_a_second_failure_and_any_other_error_is_raised(kernel: Kernel, tmp_path: Path, error: str, runs: int) -> None:
    with pytest.raises(CellExecutionError):
        kernel.run(notebook(tmp_path, error=error, times=5))
    assert len((tmp_path / "count").read_text()) == runs
