"""The one package that applications import: every promised name, and nothing loaded that was not asked for."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mq_client
import mq_spark
import tritonmq

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_name_of_the_client_and_of_the_spark_package_is_there_and_is_the_same_thing() -> None:
    assert set(tritonmq.__all__) == {*mq_client.__all__, *mq_spark.__all__, "__version__"}
    assert len(tritonmq.__all__) == len(set(tritonmq.__all__))
    assert set(tritonmq.__all__) <= set(dir(tritonmq))
    for package in (mq_client, mq_spark):
        assert [name for name in package.__all__ if getattr(tritonmq, name) is not getattr(package, name)] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tritonmq' has no attribute 'Consumers'"):
        _ = tritonmq.Consumers  # type: ignore[attr-defined]


def test_the_version_is_the_one_of_pyproject() -> None:
    assert tritonmq.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_who_only_produces_loads_neither_pyspark_nor_what_reads_and_administers() -> None:
    code = """
import sys
from tritonmq import Producer
needless = ("pyspark", "mq_spark", "mq_client.administration.admin", "mq_client.consumer", "mq_broker")
print([name for name in needless if name in sys.modules])
"""
    assert run(code) == "[]"


def test_without_pyspark_the_client_is_there_and_what_needs_spark_says_what_to_install() -> None:
    code = """
import sys
sys.modules["pyspark"] = None
from tritonmq import Admin, Consumer, Producer, Reader
try:
    from tritonmq import configure
except ImportError as error:
    print(error)
"""
    assert run(code) == "tritonmq.configure is for Spark, and PySpark is not installed: pip install 'pyspark>=4.2'"
