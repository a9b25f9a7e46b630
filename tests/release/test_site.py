"""The documentation as a site: it builds without a warning, needs no other host, and its reference is that of the
code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mq_protocol.names import SETTINGS
from mq_spark.planning.option_table import OPTIONS
from release.site.pages import as_page, chosen, sections

ROOT = Path(__file__).parents[2]
BUILD_S = 150.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        build, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_fetches_nothing_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    fetched = re.compile(
        r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//[^"]*"|<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*//[^>]*>'
    )
    assert {page.name: found for page in pages if (found := fetched.findall(page.read_text()))} == {}


@pytest.mark.long
def test_the_reference_names_every_setting_and_option_with_its_default(site: Path) -> None:
    settings = (site / "reference/topic-settings.html").read_text()
    assert [name for name in SETTINGS if f"<code>{name}</code>" not in settings] == []
    options = (site / "reference/spark-options.html").read_text()
    assert [each.name for each in OPTIONS if f"<code>{each.name}</code>" not in options] == []
    assert "tritonmq partition recover" in (site / "reference/commands.html").read_text()
    assert "min_insync_replicas" in (site / "reference/errors.html").read_text()
    assert "publish_batch" in (site / "api/client.html").read_text()


@pytest.mark.parametrize("page", sorted((ROOT / "docs/concepts").glob("*.md")), ids=lambda page: page.stem)
def test_a_concept_has_one_diagram_that_needs_no_network(page: Path) -> None:
    (diagram,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
    drawn = (page.parent / diagram).read_text()
    assert drawn.startswith("<svg ")
    assert "<title>" in drawn
    assert "href" not in drawn


PAGES = {
    "docs/a.md": "a.md",
    "docs/deep/b.md": "deep/b.md",
    "ARCHITECTURE.md": "architecture.md",
    "README.md": "index.md",
}


@pytest.mark.parametrize(
    ("written", "led"),
    [
        ("[a](../a.md#x)", "[a](../a.md#x)"),
        ("[built](../../ARCHITECTURE.md#bounds)", "[built](../architecture.md#bounds)"),
        ("[start](../../README.md#quick-start)", "[start](../quickstart.md)"),
        ("[rest](../../README.md#how-fast)", "[rest](../index.md#how-fast)"),
        ("[rows.py](../../src/rows.py)", "`src/rows.py`"),
        ("[the test](../../tests/t.py)", "the test (`tests/t.py`)"),
        ("[out](https://example.org/x)", "[out](https://example.org/x)"),
        ("```shell elsewhere\n[a](../../b)\n```\n", "```shell\n[a](../../b)\n```\n"),
    ],
)
def test_a_link_leads_to_a_page_or_becomes_text(written: str, led: str) -> None:
    assert as_page(written, "docs/deep/b.md", "deep/b.md", PAGES) == led


def test_a_link_out_of_the_site_leads_to_the_repositorys_home_if_it_has_one() -> None:
    text = as_page("[rows.py](../src/rows.py)", "docs/a.md", "a.md", PAGES, "https://example.org/mq")
    assert text == "[rows.py](https://example.org/mq/blob/main/src/rows.py)"


def test_sections_are_chosen_by_title_and_code_is_no_heading() -> None:
    text = "# T\n\nhead\n\n## One\n\n1\n\n## Two\n\n```shell\n## no heading\n```\n"
    assert list(sections(text)) == ["", "One", "Two"]
    assert chosen(text, "Page", "Two", "One") == "# Page\n\n```shell\n## no heading\n```\n\n## One\n\n1\n"
    with pytest.raises(KeyError):
        chosen(text, "Page", "Three")
