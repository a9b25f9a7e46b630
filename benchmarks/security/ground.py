"""What is measured on: brokers as processes, in plain text or over TLS, and the processor time of all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from mq_dev.local_cluster import LocalCluster

PLAIN: Final = "plain"
TLS: Final = "TLS"


class Row(NamedTuple):
    """A line of the table. `holds` None: nothing was promised, or it is not for this machine to say."""

    what: str
    measured: str
    promised: str
    holds: bool | None


@dataclass
class Spent:
    """Seconds of wall time, and of processor time of all processes together."""

    wall: float = 0.0
    processor: float = 0.0


class Ground:
    """Owns a cluster of one mode: `TLS`, with certificates, a closed ZooKeeper and rights, or `PLAIN`."""

    def __init__(self, directory: Path, mode: str, brokers: int, *, zookeeper: bool | None = None) -> None:
        self.mode = mode
        certs = directory / "certs" if mode == TLS else None
        self.cluster = LocalCluster(
            directory / "cluster", brokers, certs=certs, closed=certs is not None, zookeeper=zookeeper, http=True
        )
        self.certs = certs

    def __enter__(self) -> Ground:
        self.cluster.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.cluster.stop()

    @property
    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(broker.pid) for broker in self.cluster.brokers.values() if broker.pid]

    @contextmanager
    def spent(self, *asked: int) -> Iterator[Spent]:
        """On what is done meanwhile, by this process and the brokers; `asked`: by these of them."""
        running = self.cluster.brokers.items()
        found = Spent()
        others = [psutil.Process(broker.pid) for id_, broker in running if broker.pid and (not asked or id_ in asked)]
        wall, processor = time.perf_counter(), _processor(others)
        yield found
        found.wall, found.processor = time.perf_counter() - wall, _processor(others) - processor


def _processor(others: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in others]
    return time.process_time() + sum(each.user + each.system for each in times)


def resident_bytes(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


class Peak:
    """The most memory that a process has had since the last `forget`."""

    def __init__(self, process: psutil.Process) -> None:
        self._status = Path(f"/proc/{process.pid}/status")
        self._clear = Path(f"/proc/{process.pid}/clear_refs")

    def forget(self) -> int:
        self._clear.write_text("5")
        return self._field("VmRSS")

    def bytes(self) -> int:
        return self._field("VmHWM")

    def _field(self, name: str) -> int:
        [line] = [line for line in self._status.read_text().splitlines() if line.startswith(name + ":")]
        return int(line.split()[1]) << 10
