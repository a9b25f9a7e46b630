"""The table of versions keeps the rows that were not tried again; and what is pinned is what other packages support."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from release.versions import ROWS, kept, lowest_bounds, page

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = {row.name: f"| `{row.name}` | {row.python} | 4.3.0 | | works | |" for row in ROWS}


def test_a_page_that_is_written_again_has_the_same_rows() -> None:
    assert kept(page(LINES)) == LINES
    assert page(kept(page(LINES))) == page(LINES)


def test_a_row_that_is_tried_alone_replaces_its_own_line_only() -> None:
    again = {**kept(page(LINES)), "connect": "| `connect` | 3.11 | 4.3.0 | Spark Connect | **fails** | |"}
    before, after = page(LINES).splitlines(), page(again).splitlines()
    assert [line for line in after if line not in before] == [again["connect"]]


def test_every_dependency_is_tried_at_the_lowest_version_that_is_admitted() -> None:
    assert len(lowest_bounds()) == len(PROJECT["dependencies"])
    assert all(re.fullmatch(r"[\w-]+==[\d.]+\.\*", each) for each in lowest_bounds())


def test_every_python_that_the_metadata_name_is_a_row() -> None:
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named
    assert {version for version in named if version not in {row.python for row in ROWS}} == set()


def test_the_demo_installs_no_pandas_that_pyspark_does_not_support() -> None:
    pinned = re.search(r"^pandas==(\d+)\.", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert pinned is not None
    assert int(pinned[1]) < 3
    assert "pandas>=2.2,<3" in PROJECT["optional-dependencies"]["demo"]
