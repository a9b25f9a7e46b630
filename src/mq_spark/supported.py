"""Which PySpark this package works with. An older one lacks parts that streams need, and fails in ways that name
nothing."""

from __future__ import annotations

import re
from typing import Final

PYSPARK_MIN: Final = (4, 2)
"""The first PySpark whose Python streaming sources can limit a micro-batch, and end at what was there when they
began."""


def check_pyspark() -> None:
    """Raises `ImportError`, with both versions and what to install, for a PySpark that is too old.

    tritonmq without its extra `spark` installs beside any PySpark, a cluster's own for example: pip checks nothing
    there.
    """
    import pyspark

    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    if found is None or (int(found[1]), int(found[2])) >= PYSPARK_MIN:
        return
    needed = ".".join(map(str, PYSPARK_MIN))
    raise ImportError(
        f"tritonmq needs PySpark {needed} or later, and this is PySpark {pyspark.__version__}: "
        f"pip install 'pyspark>={needed}' here, and the same version wherever Spark runs"
    )
