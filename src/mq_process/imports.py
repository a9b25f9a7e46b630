"""What a process is kept from importing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process has no use for pandas")
        return None


def without_pandas() -> None:
    """Keep PyArrow from importing pandas here. Where pandas is installed it does so once, for the first array that is
    made of Python values, which stops a broker's loop for half a second and takes 40 MB. A broker needs nothing of it.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])  # PyArrow looks now, and never again
    finally:
        sys.meta_path.remove(finder)
