"""The page that sets Kafka's options beside ours: complete, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

from mq_spark import options

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "kafka-options.md").read_text()
FILES = {
    "unit": sorted((ROOT / "tests" / "mq_spark").glob("test_*.py")),
    "readers": [ROOT / "tests/mq_spark/datasource/test_readers.py"],
    "source": [ROOT / "tests/spark/test_source.py"],
    "options": [ROOT / "tests/spark/test_source_options.py"],
    "sink": [ROOT / "tests/spark/test_sink.py"],
    "where": [ROOT / "tests/spark/test_sink_options.py"],
}


def test_every_option_is_on_the_page_and_in_the_readme() -> None:
    names = {*options._SOURCE, *options._SINK, *options._BOTH}
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []
    readme = (ROOT / "README.md").read_text()
    assert [name for name in sorted(names - {*options._NO_MATTER}) if f"`{name}`" not in readme] == []


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(\w+): (test_\w+)`", PAGE)
    assert len(named) > 25
    missing = [f"{where}: {test}" for where, test in named if not any(f"def {test}(" in path.read_text() for path in FILES[where])]
    assert missing == []
    assert (ROOT / "tests/spark/test_crashes.py").exists()
