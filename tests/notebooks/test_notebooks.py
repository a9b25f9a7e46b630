"""Every notebook runs from its first cell to its last, and shows what is saved in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebooks.kernel import FOLDER, VARIES, Kernel, notebooks, read, shown

pytestmark = pytest.mark.long

NOISE = re.compile(r"warning|\bwarn\b|(?<!\w)/\w+/\w+|site-packages", re.IGNORECASE)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with Kernel() as running:
        yield running


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_shows_what_is_saved_in_it(kernel: Kernel, path: Path) -> None:
    saved = read(path)
    run = kernel.run(path)
    for then, now in zip(saved.cells, run.cells, strict=True):
        if then.cell_type == "code" and VARIES not in then.metadata.get("tags", ()):
            assert shown(now) == shown(then), (
                f"run `python -m tests.notebooks.kernel {path.stem}` if it is meant:\n{then.source}"
            )


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_has_prose_and_no_noise(path: Path) -> None:
    cells = read(path).cells
    assert cells[0].cell_type == "markdown"
    assert sum(cell.cell_type == "markdown" for cell in cells) * 3 >= len(cells), (
        "a person learns from what stands between the cells"
    )
    for cell in cells:
        for text in shown(cell) if cell.cell_type == "code" else ():
            assert not NOISE.search(text), text[:500]
        assert not any(output.get("name") == "stderr" for output in cell.get("outputs", ())), (
            "save it by tests.notebooks.kernel"
        )


def test_every_notebook_is_named_in_the_list() -> None:
    text = (FOLDER / "README.md").read_text()
    assert [path.stem for path in notebooks() if f"({path.name})" not in text] == []
