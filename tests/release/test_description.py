"""The description on a package index: no link in it that leads nowhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from release.description import description, urls
from release.dist import PACKAGES

ROOT = Path(__file__).parents[2]
HOME = "https://code.example/us/tritonmq"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[a](docs/a.md)", f"[a]({HOME}/blob/main/docs/a.md)"),
        ("[a](docs/a.md#columns)", f"[a]({HOME}/blob/main/docs/a.md#columns)"),
        ("[all](notebooks/)", f"[all]({HOME}/tree/main/notebooks)"),
        ("[license](LICENSE)", f"[license]({HOME}/blob/main/LICENSE)"),
        ("![picture](docs/p.svg)", f"![picture]({HOME}/raw/main/docs/p.svg)"),
        ("[there](https://spark.apache.org/)", "[there](https://spark.apache.org/)"),
        ("[below](#install)", "[below](#install)"),
        ("```\nx[i](y)\n```\n[a](b.md)", f"```\nx[i](y)\n```\n[a]({HOME}/blob/main/b.md)"),
    ],
)
def test_relative_links_are_made_absolute_and_nothing_else_is_touched(written: str, shown: str) -> None:
    assert description(written, HOME) == shown
    assert description(written, HOME + "/") == shown


def test_without_a_home_a_link_is_its_text() -> None:
    assert description("see [docs/a.md](docs/a.md) and [Spark](https://spark.apache.org/)", "") == (
        "see docs/a.md and [Spark](https://spark.apache.org/)"
    )
    assert urls("") == {}


@pytest.mark.parametrize("home", [HOME, ""])
def test_the_readme_has_no_relative_link_left(home: str) -> None:
    prose = "".join(description((ROOT / "README.md").read_text(), home).split("```")[::2])
    assert re.findall(r"\]\((?!https?:|#|mailto:)[^)]*\)", prose) == []


def test_every_package_below_src_is_looked_for_in_the_wheel() -> None:
    assert sorted(PACKAGES) == sorted(path.parent.name for path in (ROOT / "src").glob("*/__init__.py"))


def test_the_version_is_written_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [path for path in (ROOT / "src").rglob("*.py") if f'"{project["version"]}"' in path.read_text()]
    assert found == []
