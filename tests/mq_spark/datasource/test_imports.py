"""What a worker of Spark's imports to read: each new worker pays for it, and Spark ends those that were idle for a
minute."""

from __future__ import annotations

import subprocess
import sys

NOT_TO_READ = (
    "mq_client.administration.admin",
    "mq_client.consumer",
    "mq_client.producer",
    "mq_client.transactions",
    "pandas",
    "kazoo",
    "click",
)


def test_a_worker_that_reads_imports_nothing_that_writes_or_administers() -> None:
    code = f"""
import sys
import mq_spark.datasource.readers
print([name for name in {NOT_TO_READ!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
