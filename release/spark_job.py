"""What must work in every version: rows through a real broker and real Spark, both ways, as batches and as streams,
each once.

python spark_job.py [--connect]        in the environment that is tried; prints the versions, and ends with 0 if all
                                       rows came

With `--connect` the session is Spark Connect's: a client that sends plans to a server, which PySpark starts here.
Nothing of the tree is imported but what is installed: this file runs alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from mq_dev.local_cluster import LocalCluster
from tritonmq import Admin, Producer, __version__, configure

ROWS = 50
END_SECONDS = 120


def main(arguments: list[str]) -> int:
    connect = arguments == ["--connect"]
    with (
        tempfile.TemporaryDirectory(prefix="tritonmq-try-") as scratch,
        LocalCluster(Path(scratch) / "cluster") as cluster,
    ):
        with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            for topic in ("source", "copied"):
                admin.create_topic(topic, partitions=2, replicas=1)
            for number in range(ROWS):
                producer.publish("source", str(number).encode(), key=str(number).encode())
        spark = session(connect=connect)
        found = job(spark, cluster.bootstrap, Path(scratch))
        versions = {
            "pyspark": spark.version,
            "tritonmq": __version__,
            "python": ".".join(map(str, sys.version_info[:3])),
        }
        spark.stop()
    print(json.dumps({**versions, "connect": connect, **found}))
    return 0


def session(*, connect: bool) -> SparkSession:
    if not connect:
        builder = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "ERROR")
        )
        return configure(builder).getOrCreate()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for the server, which this process starts
    builder = SparkSession.builder.config("spark.log.level", "ERROR").config("spark.ui.enabled", "false")
    return builder.remote("local[2]").getOrCreate()


def job(spark: SparkSession, bootstrap: str, scratch: Path) -> dict[str, int]:
    """Rows of a batch read, of the sink after a stream and its restart, and of a batch write. Raises for any other
    number."""
    source = batch(spark, bootstrap, "source")
    read = source.count()
    expect("batch read", read, ROWS)
    for _ in range(2):  # the second time there is nothing new: the checkpoint knows
        stream(spark, bootstrap, scratch / "checkpoint")
    streamed = batch(spark, bootstrap, "copied")
    values = sorted(int(bytes(row["value"]).decode()) for row in streamed.select("value").collect())
    expect("rows of the streaming sink", values, list(range(ROWS)))
    more = spark.range(10).selectExpr("CAST(id AS STRING) AS value").write.format("tritonmq").mode("append")
    more.option("bootstrap.servers", bootstrap).option("topic", "copied").save()
    written = batch(spark, bootstrap, "copied").count()
    expect("rows after a batch write", written, ROWS + 10)
    return {"read": read, "streamed": len(values), "written": written - len(values)}


def batch(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    return spark.read.format("tritonmq").option("bootstrap.servers", bootstrap).option("subscribe", topic).load()


def stream(spark: SparkSession, bootstrap: str, checkpoint: Path) -> None:
    reader = spark.readStream.format("tritonmq").option("bootstrap.servers", bootstrap).option("subscribe", "source")
    rows = (
        reader.option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS // 2)
        .load()
        .select("key", "value")
    )
    writer = rows.writeStream.format("tritonmq").option("bootstrap.servers", bootstrap).option("topic", "copied")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    if not query.awaitTermination(END_SECONDS):
        raise TimeoutError(f"the stream did not end within {END_SECONDS} s")


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise SystemExit(f"{what}: {found}, and not {wanted}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
