"""What README and the pages of docs show is what a reader gets who pastes their code from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.blocks import ELSEWHERE, agrees, blocks
from tests.documents.reader import Reader
from tests.switch import plain_text

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
"""README's quick start comes first: the other pages go on from the cluster, the topics and the names that it leaves."""


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.timeout(0)  # it has many blocks: each has a bound of its own (`Reader.BLOCK_S`)
@plain_text("it pastes plain text, and docs/tls.md secures brokers of its own")
def test_documents_show_what_their_code_prints(tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    with Reader(folder) as reader:
        for page in PAGES:
            if page == TUTORIAL:  # it needs Prometheus: tests/documents/test_tutorial.py runs it
                continue
            for block in blocks(page.read_text()):
                printed = reader.paste(block)
                shown = reader.expected(block)
                if block.how != ELSEWHERE and not agrees(shown, printed):
                    where = f"{page.name}, line {block.line}"
                    pytest.fail(f"{where}: the document shows\n{shown}\nbut it printed\n{printed}\n{reader.errors()}")


def test_a_secure_cluster_with_a_spark_query_takes_ten_commands() -> None:
    """The test above runs them. The last block ends what they have started."""
    section = re.split("^## ", (ROOT / "docs" / "tls.md").read_text(), flags=re.MULTILINE)[1]
    assert section.startswith("From nothing to a secure cluster")
    *made, ending = blocks(section)
    commands = [
        line for block in made if block.language == "shell" for line in block.code.replace("\\\n", "").splitlines()
    ]
    queries = [block for block in made if block.language == "python"]
    assert len(commands) + len(queries) <= 10
    assert all(block.how == "" for block in made), "each of them is run"
    assert ending.code.startswith("kill")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_in_a_document_says_its_language(page: Path) -> None:
    """So that no block is left out of the test above by chance: what is not to be run says `elsewhere`."""
    fences = [line.strip() for line in page.read_text().splitlines() if line.startswith("```")]
    assert fences.count("```") * 2 == len(fences), "a fence without a language"
