"""What sealing costs: a broker that stands alone, and three of them, plain and with --encrypt in turn.
`python -m benchmarks.at_rest` writes AT_REST.md.

Produced are batches of a size, acknowledged once they are on the disk. They are fetched after the broker has started
again, with nothing of them in its memory: first from the disk, then from the kernel's cache. Beside the speed the
processor time of the brokers counts, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil
import pyarrow as pa

from mq_broker.storage.key_file import KeyFile, write_key_file
from mq_client import Admin, Producer, Reader
from mq_dev.embedded_zookeeper import free_port
from mq_dev.local_cluster import LocalCluster

WANTED = {"produce": 0.95, "fetch from the disk": 0.85, "fetch from the cache": 0.85}
"""Of the speed in plain, that sealed has to reach."""

SCHEMA = pa.schema([("data", pa.binary())])


class Running:
    """One broker as a process."""

    def __init__(self, data: Path, encrypt: str) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        words = [sys.executable, "-m", "mq_cli.main", "broker", "--id", "1", "--listen", self.address]
        words += ["--data", str(data), "--standalone", "--log-level", "error"]
        self._process = subprocess.Popen([*words, *(["--encrypt", encrypt] if encrypt else [])])

    def __enter__(self) -> Running:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                with Admin(self.address, timeout_ms=2_000) as admin:
                    admin.list_topics()
                    return self
            except Exception:  # noqa: BLE001 - it is not there yet
                time.sleep(0.1)
        raise TimeoutError("the broker did not start")

    def processor_s(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)


def measured(folder: Path, encrypt: str, size: int, total: int) -> list[tuple[float, float]]:
    """MB a second, and milliseconds of the broker's processor a MB: produced, fetched from the disk, and from the
    kernel's cache."""
    batches = [pa.record_batch([pa.array([os.urandom(size)], pa.binary())], SCHEMA) for _ in range(8)]
    count = total // size
    megabytes = count * size / 1e6
    with Running(folder, encrypt) as broker, Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("t", schema=SCHEMA, record_bytes_max=3 << 20)
        producer.publish_batch("t", batches[0]).result(60)
        begun, spent = time.monotonic(), broker.processor_s()
        sent = [producer.publish_batch("t", batches[number % 8]) for number in range(count)]
        for future in sent:
            future.result(120)
        produced = megabytes / (time.monotonic() - begun), 1e3 * (broker.processor_s() - spent) / megabytes
    with Running(folder, encrypt) as broker, Reader(broker.address) as reader:
        next(iter(reader.read("t", 0, 0, 1)))
        forget(folder)
        fetched = [_fetched(broker, reader, count, megabytes) for _ in range(2)]
    shutil.rmtree(folder)  # else the disk has ever more to do
    return [produced, *fetched]


def forget(folder: Path) -> None:
    """The kernel has nothing of these files in its cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _fetched(broker: Running, reader: Reader, count: int, megabytes: float) -> tuple[float, float]:
    begun, spent = time.monotonic(), broker.processor_s()
    read = sum(batch.num_rows for batch in reader.read("t", 0, 1, count + 1))
    assert read == count, f"{read} of {count}"
    return megabytes / (time.monotonic() - begun), 1e3 * (broker.processor_s() - spent) / megabytes


def replicated(cluster: LocalCluster, topic: str, size: int, total: int) -> tuple[float, float]:
    """The same of what is produced with three replicas, each of which has it on its disk."""
    batches = [pa.record_batch([pa.array([os.urandom(size)], pa.binary())], SCHEMA) for _ in range(8)]
    count = total // size
    brokers = [psutil.Process(broker.pid) for broker in cluster.brokers.values() if broker.pid]

    def spent_s() -> float:
        return sum(sum(broker.cpu_times()[:2]) for broker in brokers)

    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic(topic, partitions=6, replicas=3, schema=SCHEMA, record_bytes_max=3 << 20)
        producer.publish_batch(topic, batches[0]).result(60)
        begun, spent = time.monotonic(), spent_s()
        for future in [producer.publish_batch(topic, batches[number % 8]) for number in range(count)]:
            future.result(120)
        megabytes = count * size / 1e6
        figures = megabytes / (time.monotonic() - begun), 1e3 * (spent_s() - spent) / megabytes
        admin.delete_topic(topic)
    return figures


class Row(NamedTuple):
    """Medians of the rounds, and their range: MB a second, and milliseconds of the broker's processor a MB."""

    what: str
    plain: list[float]
    sealed: list[float]
    plain_cost: float
    sealed_cost: float
    wanted: float
    """Of the speed in plain, that sealed has to reach."""

    def text(self) -> str:
        plain, sealed = statistics.median(self.plain), statistics.median(self.sealed)
        share = sealed / plain
        cells = [
            self.what,
            _with_range(self.plain),
            _with_range(self.sealed),
            f"{share:.0%}",
            f"{self.wanted:.0%}: {'reached' if share >= self.wanted else 'NOT reached'}",
            f"{self.plain_cost:.2f}",
            f"{self.sealed_cost:.2f}",
        ]
        return f"| {' | '.join(cells)} |"


def _with_range(figures: list[float]) -> str:
    return f"{statistics.median(figures):.0f} ({min(figures):.0f} to {max(figures):.0f})"


def rounds(folder: Path, keys: str, size: int, total: int, count: int) -> list[Row]:
    found: dict[str, list[list[tuple[float, float]]]] = {"": [], keys: []}
    for number in range(count):
        order = list(found.items())
        for encrypt, figures in order if number % 2 == 0 else reversed(order):  # neither is always the first
            figures.append(measured(folder / f"{size}-{number}-{bool(encrypt)}", encrypt, size, total))
    rows = []
    for at, (what, wanted) in enumerate(WANTED.items()):
        plain, sealed = ([figure[at][0] for figure in figures] for figures in found.values())
        costs = [statistics.median(figure[at][1] for figure in figures) for figures in found.values()]
        rows.append(Row(f"{what}, {size // 1024} KiB", plain, sealed, costs[0], costs[1], wanted))
    return rows


def rounds_of_three(folder: Path, keys: str, size: int, total: int, count: int) -> Row:
    with (
        LocalCluster(folder / "plain", 3) as plain,
        LocalCluster(folder / "sealed", 3, arguments=("--encrypt", keys)) as sealed,
    ):
        found: dict[str, list[tuple[float, float]]] = {"plain": [], "sealed": []}
        for number in range(count + 1):
            for name, cluster in (("plain", plain), ("sealed", sealed)):
                found[name].append(replicated(cluster, f"t{number}", size, total))
    speeds = {name: [speed for speed, _ in figures[1:]] for name, figures in found.items()}  # the first warms up
    costs = {name: statistics.median(cost for _, cost in figures[1:]) for name, figures in found.items()}
    what = f"produce, three replicas, {size // 1024} KiB"
    return Row(what, speeds["plain"], speeds["sealed"], costs["plain"], costs["sealed"], WANTED["produce"])


def page(rows: list[Row], command: str, loads: list[float]) -> str:
    table = "\n".join(row.text() for row in rows)
    version = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return f"""# What encryption at rest costs

`{command}` wrote this page, at {version}, {time.strftime("%Y-%m-%d")},
on {os.cpu_count()} processors. The machine's load (of a minute) was {min(loads):.1f} to {max(loads):.1f}
between the rounds; a broker and its client alone make about 2.

A broker that stands alone, and in the last row three, `fsync`, plain and with `--encrypt` in turn. *Produce*: batches
of one size, acknowledged once they are on the disk. *Fetch*: all of it is read after the broker has started again, with
nothing of it in its memory, first from the disk and then from the kernel's cache. MB/s are medians, with their range;
*cost* is milliseconds of the brokers' processor a MB. Clients and brokers share the processors, and as much is asked as
they take. *Wanted* is what was planned at first; the design of storage says what it is now.

| | plain, MB/s | sealed, MB/s | sealed of plain | wanted | plain cost | sealed cost |
|---|---|---|---|---|---|---|
{table}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("AT_REST.md"))
    arguments = parser.parse_args()
    loads, rows = [os.getloadavg()[0]], []
    with tempfile.TemporaryDirectory() as name:
        keys = KeyFile()
        keys.add("default")
        write_key_file(Path(name) / "keys.json", keys)
        for size in (1 << 20, 4 << 10):
            total = arguments.mib << 20 if size > 1 << 16 else 6 << 20
            rows += rounds(Path(name), f"file:{name}/keys.json", size, total, arguments.rounds)
            loads.append(os.getloadavg()[0])
        rows.append(
            rounds_of_three(Path(name), f"file:{name}/keys.json", 1 << 20, arguments.mib << 20, arguments.rounds)
        )
        loads.append(os.getloadavg()[0])
    command = f"python -m benchmarks.at_rest --rounds {arguments.rounds} --mib {arguments.mib}"
    text = page(rows, command, loads)
    arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
