"""Three Kafka brokers and one controller (KRaft) as child processes on this machine, on loopback addresses.

Set up as Kafka's own distribution has it: its server.properties, heap and JVM flags. The controller is a process of its
own, as ZooKeeper is one beside ours, so that killing a broker takes no controller with it.
"""

from __future__ import annotations

import base64
import socket
import subprocess
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final

from mq_dev.embedded_zookeeper import free_port

HOST: Final = "127.0.0.1"
BROKERS: Final = 3
_CONTROLLER: Final = 100
START_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 30.0
_FORMAT_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.1
_HEAP: Final = "1g"
_JVM: Final = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_SHIPPED: Final = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "num.recovery.threads.per.data.dir": "2",
    "log.segment.bytes": "1073741824",
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # Not as it ships: topics are made by those who measure, and what they delete goes at once.
    "auto.create.topics.enable": "false",
    "log.segment.delete.delay.ms": "1000",
}


class KafkaFailed(Exception):
    """A process of the Kafka cluster did not come up; the message has the end of its log."""


class KafkaProcess:
    """Owns one JVM. `pid` is None while there is none."""

    def __init__(self, node: int, directory: Path, classpath: str, settings: dict[str, str]) -> None:
        self.node = node
        self.data = directory / f"data-{node}"
        self.log = directory / f"kafka-{node}.log"
        self.settings = directory / f"kafka-{node}.properties"
        self._classpath = classpath
        self._process: subprocess.Popen[bytes] | None = None
        lines = {"node.id": str(node), "log.dirs": str(self.data), **settings}
        self.settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def format(self, cluster: str) -> subprocess.Popen[bytes]:
        """Begin to lay out the data directory: `KafkaCluster` waits for all at once."""
        arguments = [
            "java",
            "-cp",
            self._classpath,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster,
            "-c",
            str(self.settings),
        ]
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "java",
                    f"-Xmx{_HEAP}",
                    f"-Xms{_HEAP}",
                    *_JVM,
                    "-cp",
                    self._classpath,
                    "kafka.Kafka",
                    str(self.settings),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def wait(self) -> None:
        """Until it has ended; killed if that takes too long."""
        if self._process is None:
            return
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-2_000:]


class KafkaCluster:
    """Owns the controller's and the brokers' processes. What they keep is below `directory`."""

    def __init__(self, directory: Path, classpath: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        controller_port, self._ports = free_port(HOST), [free_port(HOST) for _ in range(BROKERS)]
        common = {
            "controller.quorum.voters": f"{_CONTROLLER}@{HOST}:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            **_SHIPPED,
        }
        listening = {"process.roles": "controller", "listeners": f"CONTROLLER://{HOST}:{controller_port}"}
        self._controller = KafkaProcess(_CONTROLLER, directory, classpath, common | listening)
        self.brokers = {
            place + 1: KafkaProcess(place + 1, directory, classpath, common | _listening(port))
            for place, port in enumerate(self._ports)
        }
        self.bootstrap = ",".join(f"{HOST}:{port}" for port in self._ports)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for formatting in [process.format(cluster) for process in self._all()]:
            _, said = formatting.communicate(timeout=_FORMAT_TIMEOUT_S)
            if formatting.returncode:
                raise KafkaFailed(f"Kafka's storage could not be formatted: {said.decode(errors='replace')[-2_000:]}")

    def _all(self) -> list[KafkaProcess]:
        return [self._controller, *self.brokers.values()]

    def start(self) -> None:
        """Return when every broker serves. Raises `KafkaFailed`."""
        for process in self._all():
            process.start()
        self.wait_until_serving()

    def wait_until_serving(self) -> None:
        """Until every broker listens. Raises `KafkaFailed`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for process, port in zip(self.brokers.values(), self._ports, strict=True):
            while not _listens(port):
                if process.pid is None or time.monotonic() > deadline:
                    raise KafkaFailed(
                        f"Kafka's node {process.node} does not serve; its log ends with:\n{process.log_tail()}"
                    )
                time.sleep(_POLL_S)

    def stop(self) -> None:
        for process in self.brokers.values():
            process.terminate()
        for process in self.brokers.values():
            process.wait()
        self._controller.terminate()
        self._controller.wait()

    def __enter__(self) -> KafkaCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _listening(port: int) -> dict[str, str]:
    return {
        "process.roles": "broker",
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "inter.broker.listener.name": "PLAINTEXT",
    }


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
