"""Every notebook runs from its first cell to its last, and shows what its text says."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def run(path: Path) -> list[str]:
    """The last output of each code cell, as text."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(path.parent)}}).execute()
    texts = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            results = [output["data"]["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]
            texts.append(results[-1] if results else "")
    return texts


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    shown = run(path)
    if path.stem == "first_steps":
        assert [text for text in shown if text.isdigit()] == ["3", "3", "5"], shown
