"""Runs notebooks from their first cell to their last, one after the other in one kernel, and can save what they show.

python -m tests.notebooks.kernel [NAME …]      run and save those notebooks (default: all)

One kernel means one Python start and one JVM for all of them; names are cleared in between, so that no notebook leans
on another. What is saved are results, prints and plots: not standard error, where Java and Spark say what depends on
the machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

from tests import switch

FOLDER = Path(__file__).parents[2] / "notebooks"
VARIES = "varies"
"""The tag of a cell whose output differs from run to run: a time that was measured, a plot of it."""

NO_JAVA = "JAVA_GATEWAY_EXITED"
"""What PySpark says when its JVM ended while it started."""

CELL_TIMEOUT_S = 150
ENVIRONMENT = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SOURCE_DATE_EPOCH": "0",  # the date that matplotlib writes into each figure
    # A JVM that compiles little starts quicker, and these end before more would pay. A reader's own runs without it.
    "PYSPARK_SUBMIT_ARGS": '--driver-java-options "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" '
    "--conf spark.ui.showConsoleProgress=false pyspark-shell",
}


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


class Kernel:
    """Owns a kernel; `run` gives each notebook a clean one as far as names go."""

    def __init__(self) -> None:
        # Spoken to through sockets in a folder: a kernel's TCP ports are chosen before they are bound, and another
        # process may have them by then.
        self._sockets = tempfile.TemporaryDirectory(prefix="kernel-")
        spoken_to = {"transport": "ipc", "ip": f"{self._sockets.name}/socket"}
        self._client = NotebookClient(
            _cells(),
            kernel_name="python3",
            timeout=CELL_TIMEOUT_S,
            startup_timeout=CELL_TIMEOUT_S,
            resources={"metadata": {"path": str(FOLDER)}},
            config=Config({"AsyncKernelManager": spoken_to}),
        )

    def run(self, path: Path) -> Any:
        """The notebook with its outputs, run a second time if Java did not start.

        Raises `nbclient.exceptions.CellExecutionError` for a cell that fails.
        """
        try:
            return self._run(path)
        except CellExecutionError as error:
            if NO_JAVA not in str(error):
                raise
            print(f"Java did not start for {path.name}, which is run a second time: {error}", file=sys.stderr)
            return self._run(path)

    def _run(self, path: Path) -> Any:
        notebook = read(path)
        for each in (_cells("%reset -f", switch.words()), notebook):
            self._client.nb = each
            self._client.execute(cleanup_kc=False, env={**os.environ, **ENVIRONMENT})
        return notebook

    def close(self) -> None:
        """End the kernel, and with it the JVM and all that a notebook which failed has left running."""
        self._client.nb = _cells()
        self._client.execute(cleanup_kc=True)
        self._sockets.cleanup()

    def __enter__(self) -> Kernel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> Any:
    load: Any = nbformat.read
    return load(path, as_version=4)


def _cells(*sources: str) -> Any:
    form: Any = nbformat.v4
    return form.new_notebook(cells=[form.new_code_cell(source) for source in sources])


def shown(cell: Any) -> list[str]:
    """What a person sees below a code cell, as text; a plot as its SVG."""
    texts = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream" and output.name == "stdout":
            texts.append(output.text)
        elif output.output_type in ("execute_result", "display_data"):
            texts.append(output.data.get("image/svg+xml") or output.data["text/plain"])
    return texts


def save(notebook: Any, path: Path) -> None:
    """Without standard error, times and counters: running it again changes only what is different."""
    number = 0
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            number += 1
            cell.execution_count = number
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = number
                    if "image/svg+xml" in output.data:
                        del output.data["text/plain"]
    notebook.metadata.pop("language_info", None)
    dump: Any = nbformat.write
    dump(notebook, path)


if __name__ == "__main__":
    with Kernel() as kernel:
        for notebook_path in notebooks():
            if sys.argv[1:] in ([], [notebook_path.stem]) or notebook_path.stem in sys.argv[1:]:
                save(kernel.run(notebook_path), notebook_path)
                print(f"saved {notebook_path.name}", flush=True)
