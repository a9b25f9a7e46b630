"""What sealing costs: a broker that stands alone, plain and with --encrypt in turn. `python -m benchmarks.at_rest`.

Produced are batches of a size, acknowledged once they are on the disk. A cold fetch reads them after the broker has
started again, with nothing of them in its memory; the kernel's cache has them. Beside the speed the processor time of
the broker counts, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow as pa

from mq_broker.storage.key_file import KeyFile, write_key_file
from mq_client import Admin, Producer, Reader
from mq_dev.embedded_zookeeper import free_port

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


def measured(folder: Path, encrypt: str, size: int, total: int) -> tuple[float, float, float, float]:
    """MB a second, and milliseconds of the broker's processor a MB: produced, and fetched cold."""
    batches = [pa.record_batch([pa.array([os.urandom(size)], pa.binary())], SCHEMA) for _ in range(8)]
    count = total // size
    with Running(folder, encrypt) as broker, Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("t", schema=SCHEMA, record_bytes_max=3 << 20)
        producer.publish_batch("t", batches[0]).result(60)
        begun, spent = time.monotonic(), broker.processor_s()
        sent = [producer.publish_batch("t", batches[number % 8]) for number in range(count)]
        for future in sent:
            future.result(120)
        megabytes = count * size / 1e6
        produced = megabytes / (time.monotonic() - begun), 1e3 * (broker.processor_s() - spent) / megabytes
    with Running(folder, encrypt) as broker, Reader(broker.address) as reader:
        next(iter(reader.read("t", 0, 0, 1)))
        begun, spent = time.monotonic(), broker.processor_s()
        read = sum(batch.num_rows for batch in reader.read("t", 0, 1, count + 1))
        assert read == count, f"{read} of {count}"
        fetched = megabytes / (time.monotonic() - begun), 1e3 * (broker.processor_s() - spent) / megabytes
        return *produced, *fetched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=256)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        keys = KeyFile()
        keys.add("default")
        write_key_file(Path(name) / "keys.json", keys)
        for size in (1 << 20, 4 << 10):
            total = arguments.mib << 20 if size > 1 << 16 else 6 << 20
            found: dict[str, list[tuple[float, float, float, float]]] = {"": [], f"file:{name}/keys.json": []}
            for number in range(arguments.rounds):
                for encrypt, figures in found.items():
                    figures.append(measured(Path(name) / f"{size}-{number}-{bool(encrypt)}", encrypt, size, total))
            plain, sealed = (
                [statistics.median(figure[each] for figure in figures) for each in range(4)]
                for figures in found.values()
            )
            for each, what in ((0, "produce"), (2, "cold fetch")):
                print(
                    f"{size:>8} B  {what:<10}  plain {plain[each]:6.1f} MB/s {plain[each + 1]:6.2f} ms/MB  "
                    f"sealed {sealed[each]:6.1f} MB/s {sealed[each + 1]:6.2f} ms/MB"
                )


if __name__ == "__main__":
    main()
