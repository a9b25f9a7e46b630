"""The cluster that is put under fire: real brokers and a real ZooKeeper behind a network and disks that can be hurt.

Nothing here chooses what to do: nemesis.py does. Every method that hurts has one that heals.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from mq_client import Admin
from tests.chaos.network import HOST, ZOOKEEPER, Network
from tests.cluster.harness import Cluster, wait_until
from tests.cluster.key_commands import KeyCommands, of

DISK_MB = 4_096
ASK_MS = 4_000
RECORD = re.compile(rb"[jp][0-9]\.[0-9]+[a-z]?-[0-9]+\.[0-9]")
"""What a producer of chaos writes (client.py)."""

_STORED = "data/version-2"
"""Where ZooKeeper keeps what it knows, in its directory."""

_STOP_S = 20.0
_FILL_S = 5.0


class FireCluster(Cluster):
    """Owns what `Cluster` owns, the network between all of it, and the brokers' disks where `disks` is asked for and
    permitted.

    `bootstrap` and what brokers advertise lead through the network; the harness's own questions about a process do not.
    """

    def __init__(
        self,
        directory: Path,
        brokers: int = 3,
        *,
        session_ms: int = 2_000,
        disks: bool = False,
        encrypt: bool = False,
        http: bool = False,
    ) -> None:
        self.keys = KeyCommands(directory / "keys") if encrypt else None
        """Those that the brokers seal with; None: they do not."""

        sealing = ("--encrypt", self.keys.reference) if self.keys is not None else ()
        arguments = ("--session-timeout-ms", str(session_ms), *sealing)
        super().__init__(directory, brokers, arguments=arguments, http=http)
        assert self.zookeeper is not None
        self.session_ms = session_ms
        self.network = Network(lambda: {str(number): broker.pid for number, broker in self.brokers.items()})
        self._advertised: list[str] = []
        self._mounted: list[Path] = []
        for number, broker in self.brokers.items():
            advertised = f"{HOST}:{self.network.listen(str(number), broker.port)}"
            # What brokers ask each other goes through the network as well
            broker.arguments += ["--peer-advertise", f"{HOST}:{self.network.listen(str(number), broker.port)}"]
            zookeeper = f"{HOST}:{self.network.listen(ZOOKEEPER, self.zookeeper.port, dialler=str(number))}"
            broker.arguments += ["--advertise", advertised, "--zookeeper", zookeeper]  # the last word counts
            self._advertised.append(advertised)
        if disks:
            self._mount_disks()

    @property
    def bootstrap(self) -> str:
        return ",".join(self._advertised)

    @property
    def admin(self) -> Admin:
        """Impatient: it is asked while much is broken."""
        if self._admin is None:
            self._admin = Admin(self.bootstrap, timeout_ms=ASK_MS)
        return self._admin

    @property
    def ids(self) -> list[int]:
        return sorted(self.brokers)

    @property
    def disks(self) -> bool:
        """Whether disks can be filled: mounting a file system may not be permitted."""
        return bool(self._mounted)

    def stop(self) -> None:
        for number in self.ids:
            self.resume(number)
        with contextlib.suppress(AssertionError):
            self.resume_zookeeper()
        self.network.mend_all()
        super().stop()
        self.network.close()
        for path in self._mounted:
            subprocess.run(["umount", str(path)], check=True)
        self._mounted = []

    # ---------------------------------------------------------------- processes

    def stop_broker(self, number: int) -> None:
        """A clean stop; killed if it does not end in time, which `AssertionError` tells."""
        broker = self.brokers[number]
        broker.terminate()
        ended = broker.wait(_STOP_S)
        if not ended:
            broker.kill()
        assert ended, f"broker {number} did not stop within {_STOP_S:g} s; {broker.last_words()}"

    def data(self, *numbers: int) -> list[str]:
        """The directories of those brokers, as `tritonmq keys` takes them."""
        return of(*(self.brokers[number].data_dir for number in numbers))

    def readable(self) -> list[Path]:
        """Files of brokers that hold a record which can be read without a key."""
        files = [path for broker in self.brokers.values() for path in broker.data_dir.rglob("*") if path.is_file()]
        return [path for path in files if RECORD.search(path.read_bytes())]

    def start_broker(self, number: int) -> None:
        self.brokers[number].start()

    def pause_zookeeper(self) -> None:
        self._signal_zookeeper(signal.SIGSTOP)

    def resume_zookeeper(self) -> None:
        self._signal_zookeeper(signal.SIGCONT)

    def _signal_zookeeper(self, number: signal.Signals) -> None:
        assert self.zookeeper is not None
        if self.zookeeper.pid is not None:
            os.kill(self.zookeeper.pid, number)

    # ---------------------------------------------------------------- disks

    def _mount_disks(self) -> None:
        """A file system of its own for each broker, in memory: as full as a real one, and faster."""
        for broker in self.brokers.values():
            broker.data_dir.mkdir(parents=True, exist_ok=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(broker.data_dir)]
            if subprocess.run(command, capture_output=True).returncode:
                return
            self._mounted.append(broker.data_dir)

    def fill_disk(self, number: int) -> None:
        """Not a page is left: the file system becomes as small as what is on it."""
        path = self.brokers[number].data_dir

        def fill() -> bool:
            stat = os.statvfs(path)
            return self._resize(path, (stat.f_blocks - stat.f_bfree) * stat.f_frsize)  # refused if more is on it by now

        wait_until(fill, f"the disk of broker {number} is full", _FILL_S)

    def free_disk(self, number: int) -> None:
        assert self._resize(self.brokers[number].data_dir, DISK_MB << 20)

    @staticmethod
    def _resize(path: Path, size: int) -> bool:
        command = ["mount", "-o", f"remount,size={size}", str(path)]
        return subprocess.run(command, capture_output=True).returncode == 0

    # ---------------------------------------------------------------- back in time

    def keep_copy(self, number: int) -> None:
        """Of a broker's directory as it is. Of what changes meanwhile it has what it comes by, as such a copy has."""
        copy = self._copy(str(number))
        with contextlib.suppress(shutil.Error):  # for files that went meanwhile; all others are copied
            shutil.copytree(self.brokers[number].data_dir, copy)

    def put_back(self, number: int) -> None:
        """The directory of a broker that is down becomes its copy again."""
        data = self.brokers[number].data_dir
        for path in data.iterdir():  # it may be the root of a file system
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self._copy(str(number), anew=False), data, dirs_exist_ok=True)

    def keep_copy_of_zookeeper(self) -> None:
        """It is down for that moment."""
        assert self.zookeeper is not None
        self.stop_zookeeper(cleanly=True)
        shutil.copytree(self.zookeeper.data_dir / _STORED, self._copy(ZOOKEEPER))
        self.start_zookeeper()

    def put_zookeeper_back(self) -> None:
        """While it is down."""
        assert self.zookeeper is not None
        shutil.rmtree(self.zookeeper.data_dir / _STORED)
        shutil.copytree(self._copy(ZOOKEEPER, anew=False), self.zookeeper.data_dir / _STORED)

    def _copy(self, of_what: str, *, anew: bool = True) -> Path:
        copy = self.directory / f"copy-of-{of_what}"
        if anew:
            shutil.rmtree(copy, ignore_errors=True)
        return copy

    # ---------------------------------------------------------------- health

    def heal(self) -> None:
        """End every fault there may be; what was killed runs again. Does not wait."""
        self.network.mend_all()
        self.resume_zookeeper()
        self.start_zookeeper()
        for number in self.ids:
            self.resume(number)
            if self._mounted:
                self.free_disk(number)
            self.start_broker(number)

    def supervise(self) -> list[str]:
        """Start again what ended by itself, as a supervisor does; the last words of each. For when nothing is down on
        purpose."""
        said = []
        for number, broker in self.brokers.items():
            if broker.status is not None:
                last = broker.log_tail().strip().splitlines()[-1:] or ["nothing"]
                said.append(f"broker {number} had ended with status {broker.status}, and said last: {last[0]}")
                broker.start()
        return said

    def wait_until_whole(self, topics: list[str], deadline_s: float) -> list[str]:
        """Every broker is registered, every partition led, every replica in sync. What `supervise` heard meanwhile.

        Raises `AssertionError` saying what is not.
        """
        said: list[str] = []
        last = ""

        def whole() -> bool:
            nonlocal last
            said.extend(self.supervise())
            last = self.missing(topics)
            return not last

        try:
            wait_until(whole, "every partition is led and every replica in sync", deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {last}; {'; '.join(said)}") from None
        return said

    def missing(self, topics: list[str]) -> str:
        """What is not whole, in words; empty if nothing. A move that is not over is a want, too."""
        registered = {broker.id for broker in self.admin.describe_cluster().brokers}
        if registered != set(self.ids):
            return f"brokers {sorted(registered)} are registered"
        for topic in topics:
            for partition in self.admin.describe_topic(topic).partitions:
                if not partition.leader or set(partition.isr) != set(partition.replicas):
                    return f"{topic}-{partition.partition} is led by {partition.leader}, in sync are {partition.isr}"
        moves = [f"{move.topic}-{move.partition} to {move.target}" for move in self.admin.moves()]
        return f"on their way are {', '.join(moves)}" if moves else ""
