"""What makes Spark start quickly where it lives for seconds only, as in tests. It runs the same code, only prepared
better."""

from __future__ import annotations

import importlib.util
from pathlib import Path

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM compiles little: it ends before that would pay."""


def spark_home(path: Path) -> Path:
    """Make a home of Spark's at `path`, of links to the installed one, but without its pyspark.zip.

    Spark's Python processes then import the installed package, whose modules are compiled already: each starts with a
    quarter of the CPU, and a query's start needs about ten. pyspark is looked up, never imported.
    """
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None, "pyspark is in requirements.lock"
    assert spec.submodule_search_locations, "pyspark is a package"
    installed = Path(spec.submodule_search_locations[0])
    path.mkdir(parents=True)
    for name in ("bin", "conf", "jars", "sbin"):
        if (installed / name).exists():
            (path / name).symlink_to(installed / name)
    return path
