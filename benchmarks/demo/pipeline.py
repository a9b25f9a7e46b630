"""The Spark driver of the demo: what a user would write, in a process of its own so that it can be killed.

Two queries read the topic `flights`: one joins the airlines and writes every flight to `flights_enriched`, the other
counts delays per carrier and day and writes each finished day to `delays`. A file named `drain` in the work directory
tells it to finish what is there and end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every PySpark user writes it
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.demo.flights import CLOSING_CARRIER, airlines
from mq_spark import configure


def enriched(flights: DataFrame, names: DataFrame) -> DataFrame:
    """Every flight with its airline's name."""
    return (
        flights.where(F.col("carrier") != CLOSING_CARRIER)
        .join(F.broadcast(names), "carrier", "left")
        .withColumn("cancelled", F.col("dep_time").isNull())
    )


def delays(flights: DataFrame) -> DataFrame:
    """Departures, cancellations and delays per carrier and UTC day; a day is written once, when the watermark has
    passed it."""
    late = F.when(F.col("dep_delay") > 0, F.col("dep_delay"))
    return (
        flights.withWatermark("scheduled", "60 days")
        .groupBy(F.window("scheduled", "1 day").alias("window"), "carrier")
        .agg(
            F.count("*").alias("departures"),
            F.sum(F.col("dep_time").isNull().cast("long")).alias("cancelled"),
            F.count(late).alias("delayed"),
            F.coalesce(F.sum(late), F.lit(0)).cast("long").alias("minutes_late"),
            F.max("dep_delay").alias("worst"),
        )
        .withColumn("day", F.to_date(F.col("window.start")))
        .drop("window")
    )


def run(bootstrap: str, work: Path) -> None:
    """Stream until told to drain, then finish what is there."""
    spark = configure(
        SparkSession.builder.master("local[2]")
        .appName("tritonmq-demo")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.enabled", "false")
        # a failure in here is Spark's as often as ours: say where
        .config("spark.sql.pyspark.jvmStacktrace.enabled", "true")
    ).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    names = spark.createDataFrame(airlines().to_dict("records"))

    def queries(**trigger: bool | str) -> list[StreamingQuery]:
        flights = (
            spark.readStream.format("tritonmq")
            .option("bootstrap.servers", bootstrap)
            .option("subscribe", "flights")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 40_000)
            .load()
        )
        written = {"flights_enriched": enriched(flights, names), "delays": delays(flights)}
        return [
            frame.writeStream.format("tritonmq")
            .option("bootstrap.servers", bootstrap)
            .option("topic", topic)
            .option("checkpointLocation", str(work / "checkpoints" / topic))
            .outputMode("append")
            .trigger(**trigger)  # type: ignore[arg-type]
            .start()
            for topic, frame in written.items()
        ]

    running = queries(processingTime="500 milliseconds")
    (work / "streaming").touch()
    while not (work / "drain").exists():
        for query in running:
            if query.exception() is not None:
                raise SystemExit(f"query failed: {query.exception()}")
        time.sleep(0.1)
    for query in running:
        query.stop()
    for query in queries(availableNow=True):
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
