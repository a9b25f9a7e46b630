"""What a JVM does once for the archive of its classes (quick_start.py): a small stream with a shuffle.

spark-submit … warming.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession


def warm(scratch: Path) -> None:
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    (scratch / "input").mkdir(parents=True)
    (scratch / "input" / "1.txt").write_text("1\n2\n")
    stream = spark.readStream.text(str(scratch / "input")).repartition(2)
    stream = stream.mapInArrow(lambda batches: batches, stream.schema)
    sink = stream.writeStream.format("noop").option("checkpointLocation", str(scratch / "checkpoint"))
    sink.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    warm(Path(sys.argv[1]))
