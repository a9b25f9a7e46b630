"""What README and the pages of docs show is what a reader gets who pastes their code from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.blocks import ELSEWHERE, agrees, blocks
from tests.documents.reader import Reader

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
"""README's quick start comes first: the other pages go on from the cluster, the topics and the names that it leaves."""


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_documents_show_what_their_code_prints(tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    with Reader(folder) as reader:
        for page in PAGES:
            for block in blocks(page.read_text()):
                printed = reader.paste(block)
                shown = reader.expected(block)
                if block.how != ELSEWHERE and not agrees(shown, printed):
                    where = f"{page.name}, line {block.line}"
                    pytest.fail(f"{where}: the document shows\n{shown}\nbut it printed\n{printed}\n{reader.errors()}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_in_a_document_says_its_language(page: Path) -> None:
    """So that no block is left out of the test above by chance: what is not to be run says `elsewhere`."""
    fences = [line.strip() for line in page.read_text().splitlines() if line.startswith("```")]
    assert fences.count("```") * 2 == len(fences), "a fence without a language"
