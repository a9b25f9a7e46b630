"""What makes Spark start quickly where it lives for seconds only, as in tests. It runs the same code, only prepared
better.

python -m tests.spark.quick_start     prepare it in this virtual environment, as `make test` does first
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM compiles little: it ends before that would pay."""

PREPARED: Final = Path(sys.prefix) / "quick-spark"
_WARM_S: Final = 600.0


class QuickSpark(NamedTuple):
    """Where Spark is (`SPARK_HOME`), and the options of its JVMs."""

    home: Path
    jvm: str

    def environment(self) -> dict[str, str]:
        """For processes that start Spark. Its driver's JVM takes these options, whoever starts it."""
        return {"SPARK_HOME": str(self.home), "SPARK_SUBMIT_OPTS": self.jvm}


def quick_spark(scratch: Path) -> QuickSpark:
    """As it was prepared in this virtual environment. Where it was not, a home in `scratch`, and no archive."""
    if _mark(PREPARED).exists():
        return QuickSpark(PREPARED / "home", _with_archive(PREPARED))
    return QuickSpark(spark_home(scratch / "spark-home"), QUICK_JVM)


def prepare(directory: Path) -> None:
    """Make a home and an archive of the JVM's classes. With it a driver's start costs half of the processor time: its
    classes come parsed and verified. It belongs to this home; a JVM that cannot use it starts as ever.
    """
    shutil.rmtree(directory, ignore_errors=True)
    home = spark_home(directory / "home")
    options = f"{QUICK_JVM} -Xlog:disable -XX:ArchiveClassesAtExit={_archive(directory)}"
    warming = [str(Path(__file__).with_name("warming.py")), str(directory / "scratch")]
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--driver-java-options", options, *warming]
    own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=_WARM_S
    )
    if done.returncode:
        sys.exit(f"Spark does not start, so nothing is prepared:\n{done.stderr[-3_000:]}")
    shutil.rmtree(directory / "scratch")
    _mark(directory).touch()


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


def _with_archive(directory: Path) -> str:
    return f"{QUICK_JVM} -Xlog:disable -Xshare:auto -XX:SharedArchiveFile={_archive(directory)}"


def _archive(directory: Path) -> Path:
    return directory / "classes.jsa"


def _mark(directory: Path) -> Path:
    return directory / "ready"


if __name__ == "__main__":
    prepare(PREPARED)
