"""What a trigger costs whatever it reads, and what each setting of `mq_spark.configure` takes off it.

    python -m benchmarks.trigger_costs [--triggers N] [--rounds N] [NAME …]

One record a micro-batch, from a topic of one partition to a topic of one partition, one broker on the same machine
(`durability=os`): what takes time is the trigger. Each way of running is a Spark of its own, for the JVM's settings are
fixed when it starts; ways are run in turn, `--rounds` times. A micro-batch's time is Spark's own `triggerExecution`;
its parts are named in `PARTS`. Medians; the first micro-batches, in which workers start and the JVM warms up, are not
counted.

Not a benchmark of throughput (`make bench`). Run it on an idle machine: on a busy one nothing can be compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster
from mq_spark.session import FAST_CHECKPOINTS, SETTINGS, configure

PARTS = {
    "latestOffset": "asking the source for its end",
    "walCommit": "writing the planned offsets into the checkpoint",
    "queryPlanning": "planning",
    "addBatch": "the tasks: read, stage, decide",
    "commitOffsets": "writing into the checkpoint that it is done",
}

_UNIX, _REUSE = "spark.python.unix.domain.socket.enabled", "spark.python.worker.reuse"
WAYS = {
    "configure": {},
    "configure, fast_checkpoints": FAST_CHECKPOINTS,
    "without Unix sockets": {_UNIX: "false"},
    "without worker reuse": {_REUSE: "false"},
    "neither": {_UNIX: "false", _REUSE: "false"},
}
"""Ways of running: what differs from `configure`."""

WARM_UP = 5
TRIGGER_TIMEOUT_S = 60


def measure(bootstrap: str, settings: dict[str, str], triggers: int, scratch: Path, sink: str) -> list[dict[str, int]]:
    """The parts of each counted micro-batch in milliseconds, with `triggerExecution` for the whole."""
    builder = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    )
    builder = configure(builder.config("spark.sql.shuffle.partitions", "2"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    stream = spark.readStream.format("tritonmq").option("bootstrap.servers", bootstrap).option("subscribe", "in")
    writer = stream.load().select("key", "value").writeStream.format(sink).option("checkpointLocation", str(scratch))
    if sink == "tritonmq":
        writer = writer.option("bootstrap.servers", bootstrap).option("topic", "out")
    query = writer.start()
    query.processAllAvailable()
    with Producer(bootstrap, linger_ms=0) as producer:
        found = []
        for number in range(WARM_UP + triggers):
            producer.publish("in", b"x" * 100).result(TRIGGER_TIMEOUT_S)
            query.processAllAvailable()
            if number >= WARM_UP:
                found.append(_last(query))
    query.stop()
    spark.stop()
    return found


def _last(query: StreamingQuery) -> dict[str, int]:
    progress = next(each for each in reversed(query.recentProgress) if each.numInputRows)
    return {part: int(progress.durationMs.get(part, 0)) for part in (*PARTS, "triggerExecution")}


def _in_a_process(bootstrap: str, way: str, sink: str, triggers: int, scratch: Path) -> list[dict[str, int]]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.trigger_costs",
        "--one",
        bootstrap,
        way,
        sink,
        str(scratch),
        "--triggers",
        str(triggers),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=(WARM_UP + triggers) * TRIGGER_TIMEOUT_S)
    found: list[dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(found: dict[tuple[str, str], list[dict[str, int]]]) -> str:
    """Markdown: a line for each way and sink, medians in milliseconds."""
    columns = ["triggerExecution", *PARTS]
    lines = [f"| sink | way | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for (sink, way), each in found.items():
        medians = [f"{statistics.median(micro_batch[column] for micro_batch in each):.0f}" for column in columns]
        lines.append(f"| {sink} | {way} | {' | '.join(medians)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.trigger_costs", description="What a trigger costs whatever it reads."
    )
    parser.add_argument("ways", nargs="*", metavar="NAME", help=f"of {', '.join(WAYS)}; default: all")
    parser.add_argument("--triggers", type=int, default=30, help="micro-batches counted in each run (default 30)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each way (default 2)")
    parser.add_argument("--one", nargs=4, metavar=("BOOTSTRAP", "WAY", "SINK", "DIR"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        bootstrap, way, sink, scratch = given.one
        print(json.dumps(measure(bootstrap, WAYS[way], given.triggers, Path(scratch), sink)))
        return
    chosen = given.ways or list(WAYS)
    if unknown := set(chosen) - set(WAYS):
        parser.error(f"unknown way {sorted(unknown)[0]!r}: one of {', '.join(WAYS)}")
    found: dict[tuple[str, str], list[dict[str, int]]] = {}
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory) / "cluster") as cluster:
        with Admin(cluster.bootstrap) as admin:
            for topic in ("in", "out"):
                admin.create_topic(topic, durability="os")
        for turn in range(given.rounds):
            for sink in ("noop", "tritonmq"):
                for way in chosen:
                    scratch = Path(directory) / f"{turn}-{sink}-{list(WAYS).index(way)}"
                    found.setdefault((sink, way), []).extend(
                        _in_a_process(cluster.bootstrap, way, sink, given.triggers, scratch)
                    )
    print(f"configure sets: {', '.join(f'{name}={value}' for name, value in SETTINGS.items())}\n")
    print(table(found))


if __name__ == "__main__":
    main(sys.argv[1:])
