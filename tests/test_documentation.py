"""What the documents name exists: every test and every file that they give as proof."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from mq_protocol.names import SETTINGS, Setting
from mq_protocol.queues.settings import QUEUE_SETTINGS
from tests.simulation import test_durability as cases

ROOT = Path(__file__).parents[1]
DESIGNS = sorted(ROOT.glob("src/**/*.md"))
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("tests/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *DESIGNS,
    ]
)
KB = 1_000
LARGEST = {"README.md": 12 * KB, "CHANGELOG.md": 15 * KB, "ARCHITECTURE.md": 30 * KB, "benchmarks/NOTES.md": 20 * KB}
"""In bytes, so that each is read from its beginning to its end. What single rooms need stands beside them."""
LARGEST_DESIGN = 12 * KB
SHORT = {
    "S[": "tests/simulation/test_durability.py::test_survived[",
    "N[": "tests/simulation/test_durability.py::test_not_survived[",
    "C::": "tests/cluster/test_faults.py::",
}
"""Abbreviations of ARCHITECTURE.md's table of durabilities."""


def named_tests(text: str) -> set[tuple[str, str]]:
    """(file, test's name) of every `tests/….py::name` that stands in the text in backticks."""
    found: set[tuple[str, str]] = set()
    for quoted in re.findall(r"`([^`\n]+)`", text):
        name = quoted
        for short, long in SHORT.items():
            if name.startswith(short):
                name = long + name.removeprefix(short)
        path, separator, test = name.partition("::")
        if separator and path.startswith("tests/"):
            found.add((path, test))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_document_names_is_there(document: Path) -> None:
    for path, test in named_tests(document.read_text()):
        function, _, _ = test.partition("[")
        source = (ROOT / path).read_text()
        assert f"def {function}(" in source, f"{document.name} names {path}::{test}"


def test_every_cell_of_the_durability_table_is_a_case_of_its_test() -> None:
    told = {"S": cases.SURVIVED, "N": cases.NOT_SURVIVED}
    cells = re.findall(r"`([SN])\[(\w+)-(\w+)\]`", (ROOT / "ARCHITECTURE.md").read_text())
    assert {(durability, fault) for kind, durability, fault in cells if kind == "S"} == set(told["S"])
    assert {(durability, fault) for kind, durability, fault in cells if kind == "N"} == set(told["N"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_life_of_a_batch_has_ten_steps_with_one_file_each() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    life = text[text.index("## The life of a batch") : text.index("## Rooms and floors")]
    steps = re.split(r"^\d+\. ", life, flags=re.MULTILINE)[1:]
    named = [re.findall(r"`([\w/]+\.py)`", step) for step in steps]
    assert [len(names) for names in named] == [1] * 10
    assert [name for (name,) in named if not (ROOT / "src" / name).is_file()] == []


def test_what_holds_an_invariant_is_there() -> None:
    """Each row of "What is never so" names an import contract, a test, or what the simulators look at."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("\n## What is never so\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = [each["name"] for each in settings["tool"]["importlinter"]["contracts"]]
    assert len(rows) >= 15
    for what, held in rows:
        named = re.findall(r"`([^`]+)`", held)
        assert [name for name in named if name.startswith(("C: ", "tests/"))], f"nothing holds: {what}"
        for name in named:
            if name.startswith("C: "):
                assert any(contract.startswith(name.removeprefix("C: ")) for contract in contracts), name
            elif "/" in name:
                assert (ROOT / name.partition("::")[0]).exists(), name


@pytest.mark.parametrize("document", DESIGNS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_design_says_what_it_is_for_and_names_files_that_are_there(document: Path) -> None:
    text = document.read_text()
    if document.name == "DESIGN.md":
        assert re.findall(r"^## (.+)$", text, re.MULTILINE)[:2] == ["Purpose", "Assumes"]
    room = document.parent
    roots = [ROOT, ROOT / "src", ROOT / "src/mq_broker", ROOT / "src/mq_broker/broker", room, *room.glob("*/")]
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", text)
    assert [name for name in named if not any((root / name).is_file() for root in roots)] == []


@pytest.mark.parametrize("document", [*(ROOT / name for name in LARGEST), *DESIGNS], ids=lambda path: path.name)
def test_a_document_is_no_longer_than_it_may_be(document: Path) -> None:
    name = str(document.relative_to(ROOT))
    size = len(document.read_bytes())
    assert size <= LARGEST.get(name, LARGEST_DESIGN), f"{name} has {size} bytes"


@pytest.mark.parametrize(("settings", "page"), [(SETTINGS, "topics.md"), (QUEUE_SETTINGS, "queue-policies.md")])
def test_every_setting_has_a_row_on_its_page(settings: Mapping[str, Setting], page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [name for name in settings if f"| `{name}` | " not in text] == []


ELSEWHERE = {"_grpcio_metadata.py"}
"""A file that the code names and that is not ours: gRPC's."""


@pytest.mark.parametrize("room", sorted((ROOT / "src").glob("*/")), ids=lambda path: path.name)
def test_every_file_that_the_code_names_is_there(room: Path) -> None:
    """In docstrings and comments: by its path from the repository, from `src` or one of its packages, or by its name
    alone."""
    ours = {path.name for folder in ("src", "tests", "benchmarks", "release") for path in (ROOT / folder).rglob("*.py")}
    roots = [ROOT, ROOT / "src", *(ROOT / "src").glob("*/"), ROOT / "src/mq_broker/broker"]
    for path in sorted(room.rglob("*.py")):
        for name in set(re.findall(r"(?:\w+/)*\w+\.py\b", path.read_text())) - ELSEWHERE:
            there = any((root / name).is_file() for root in [*roots, path.parent]) if "/" in name else name in ours
            assert there, f"{path.relative_to(ROOT)} names {name}"


def test_nothing_is_installed_by_a_name_that_no_index_has() -> None:
    """It is installed from a clone. What the changelog says of former releases stays."""
    pages = [
        *(each for each in DOCUMENTS if each.name != "CHANGELOG.md"),
        *ROOT.glob("notebooks/*.md"),
        *ROOT.glob("notebooks/*.ipynb"),
    ]
    by_name = re.compile(r"""pip install [\\"']*tritonmq""")
    assert [path.name for path in pages if by_name.search(path.read_text())] == []
