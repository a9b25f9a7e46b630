"""A Spark driver that does what users do with certificates, and writes down all that Spark and we show of it.

python secrets_driver.py BOOTSTRAP CERTS OUT SECRET: reads a topic in a batch and as a stream, writes another, gets
options wrong that hold `SECRET`, and leaves in OUT what its UI, its plans, its progress and its errors say.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from mq_client import Producer, Security
from mq_spark.datasource.source import TritonMQSource
from mq_spark.planning.options import parse_sink, parse_source
from tests.spark.harness import Collected
from tests.spark.sink_driver import short_session

SOURCE, SINK = "told-source", "told-sink"
"""Spark leaves out what looks like a secret: these do not."""

MODES = ("simple", "extended", "codegen", "cost", "formatted")
PAGES = ("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/")
REST = ("jobs", "stages", "environment", "allexecutors", "sql?details=true&planDescription=true&length=1000")
WRONG = (
    "kafka.ssl.key.password",
    "kafka.sasl.password",
    "kafka.sasl.jaas.config",
    "kafka.ssl.key.location",
    "kafka.sasl.oauthbearer.token.endpoint.url",
)
"""Of the options that hold a secret, or may be mistaken for one that does."""


class Shown:
    """Owns the directory of what was shown."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def keep(self, what: str, text: str) -> None:
        self._count += 1
        (self._directory / f"{self._count:03d}-{what}").write_text(text)

    def error_of(self, what: str, ask: Callable[[], object]) -> None:
        """What is raised, as a notebook and a log would show it."""
        try:
            ask()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not show the secret
            self.keep(f"error-{what}", f"{error}\n{error!r}\n{''.join(traceback.format_exception(error))}")
        else:
            raise AssertionError(f"{what} was taken")


def plans(frame: DataFrame, shown: Shown) -> None:
    java: Any = frame._jdf
    for mode in MODES:
        shown.keep(f"explain-{mode}", java.queryExecution().explainString(mode_of(frame, mode)))
    shown.keep("plan", f"{java.queryExecution()}\n{frame}\n{frame.schema}")


def mode_of(frame: DataFrame, mode: str) -> Any:
    jvm: Any = frame.sparkSession._jvm
    return jvm.org.apache.spark.sql.execution.ExplainMode.fromString(mode)


def pages(spark: SparkSession, shown: Shown) -> None:
    ui = spark.sparkContext.uiWebUrl
    application = spark.sparkContext.applicationId
    assert ui is not None
    places = [
        *PAGES,
        *(f"SQL/execution/?id={number}" for number in range(4)),
        *(f"jobs/job/?id={number}" for number in range(2)),
        *(f"api/v1/applications/{application}/{path}" for path in REST),
    ]
    for place in places:
        with urllib.request.urlopen(f"{ui}/{place}", timeout=60) as answer:
            shown.keep(f"ui-{place.split('?')[0].replace('/', '-')}", answer.read().decode())


def tokens(certs: str) -> Iterator[dict[str, str]]:
    """Options that show the token, of which the user knows no more: by Kafka's names, itself and in a file."""
    token = os.environ["TOKEN_OF_A_TEST"]
    password = {"kafka.sasl.username": token.split("_")[1], "kafka.sasl.password": token}
    yield {"certs": certs, "kafka.security.protocol": "SASL_SSL", **password}
    file = (Path(certs) / "job.token").absolute()
    file.write_text(token)
    file.chmod(0o600)
    yield {
        "certs": certs,
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }


def main(bootstrap: str, certs: str, out: str, secret: str) -> None:
    shown = Shown(Path(out) / "shown")
    builder = short_session().config("spark.ui.enabled", "true").config("spark.ui.port", "0")
    builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", f"{out}/events")
    builder = builder.config("spark.eventLog.compress", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").appName("told-to-all").getOrCreate()
    security = Security(certs, "admin")
    with Producer(bootstrap, security=security) as producer:
        producer.publish(SOURCE, "v", partition=0).result()
    given = {"bootstrap.servers": bootstrap, "certs": certs, "user": "admin"}
    shown.keep("repr", f"{security!r} {security} {TritonMQSource(dict(given))!r}")
    shown.keep("repr-source", repr(parse_source({**given, "subscribe": SOURCE}, streaming=True)))
    shown.keep("repr-sink", repr(parse_sink({**given, "topic": SINK}, streaming=True)))

    batch = spark.read.format("tritonmq").options(**given).option("subscribe", SOURCE).load()
    assert batch.count() == 1
    plans(batch, shown)
    files = {"ca": "ca.crt", "certificate": "client.admin.crt", "key": "client.admin.key"}
    each = {f"kafka.ssl.{name}.location": f"{certs}/{file}" for name, file in files.items()}
    stream = spark.readStream.format("tritonmq").option("bootstrap.servers", bootstrap).options(**each)
    stream = stream.option("subscribe", SOURCE).option("startingOffsets", "earliest")
    # The sink is told nothing: its certificate is that of the environment.
    written = stream.load().select("value").writeStream.format("tritonmq").option("bootstrap.servers", bootstrap)
    query = written.option("topic", SINK).option("checkpointLocation", f"{out}/checkpoint").queryName("told").start()
    query.processAllAvailable()
    shown.keep("explain-stream", str(query._jsq.explainInternal(True)))  # type: ignore[attr-defined]
    progress = [json.loads(each.json) for each in query.recentProgress]
    assert sum(each["numInputRows"] for each in progress) == 1
    shown.keep("progress", f"{progress}\n{query.status}\n{query.exception()}")
    pages(spark, shown)
    query.stop()

    for shows in tokens(certs):
        by_token = spark.read.format("tritonmq").option("bootstrap.servers", os.environ["BY_TOKEN"]).options(**shows)
        by_token = by_token.option("subscribe", SOURCE).load()
        assert by_token.count() == 1
        plans(by_token, shown)

    for name in WRONG:
        held = f"-----BEGIN PRIVATE KEY-----\n{secret}\n" if name.endswith("key.location") else secret
        wrong = {"bootstrap.servers": bootstrap, name: held}
        read, write = spark.read.format("tritonmq"), batch.write.format("tritonmq").mode("append")
        shown.error_of(name, read.options(**wrong, subscribe=SOURCE).load)
        shown.error_of(f"sink-{name}", write.options(**wrong, topic=SINK).save)
    failing = spark.readStream.format("tritonmq").options(**given, subscribe=SOURCE, startingOffsets="earliest").load()
    collected = Collected()
    fails = failing.selectExpr("raise_error('on purpose')").writeStream.foreachBatch(collected)
    shown.error_of("task", lambda: fails.trigger(availableNow=True).start().awaitTermination(60))
    pages(spark, shown)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
