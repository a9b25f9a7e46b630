"""Brokers and a ZooKeeper as child processes on this machine: what `tritonmq dev`, the tests, the demo and the
benchmarks start.

Real processes through the real command, on loopback addresses. Restarts nothing by itself: whoever owns it decides. Not
for production: there every broker has a machine and a supervisor of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from mq_dev.embedded_zookeeper import EmbeddedZooKeeper, free_port, is_free, tail
from mq_process.patience import LONG_S, Patience
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import files_of_broker
from mq_protocol.errors import TritonMQError

if TYPE_CHECKING:
    from mq_client.security import Security

HOST = "127.0.0.1"
CREDENTIAL_FILE = "zookeeper.auth"
STOP_TIMEOUT_S = 20.0
"""A clean stop hands leadership over, which takes a broker some seconds; after this it is killed."""

ASK_TIMEOUT_S = 2.0
_POLL_S = 0.05
_HAND_OVER_MS = 3_000
"""When all brokers of a cluster stop together the last has nobody to hand over to, and need not wait for long."""

_LOG_TAIL_CHARACTERS = 3_000


class ClusterFailed(Exception):
    """A process of a local cluster did not come up; the message has the end of its log."""


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What brokers of a cluster on this machine are given: no file with settings, and no variables for a broker. These
    are of the user's own broker, and would change this one or keep it from starting."""
    return {
        name: value
        for name, value in environment.items()
        if name != "TRITONMQ_CONFIG" and not name.startswith("TRITONMQ_BROKER_")
    }


class BrokerProcess:
    """Owns one broker's process. `pid` is None while there is none."""

    popen: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen
    """What starts it. Tests put here what is quicker."""

    def __init__(self, broker: int, port: int, directory: Path, arguments: Sequence[str]) -> None:
        self.id = broker
        self.port = port
        self.address = f"{HOST}:{port}"
        self.data_dir = directory / f"broker-{broker}"
        self.log_path = directory / f"broker-{broker}.log"
        self.pid_path = directory / f"broker-{broker}.pid"
        """Has its process's id, for who wants to kill it."""

        self.arguments = ["broker", "--id", str(broker), "--listen", self.address, "--data", str(self.data_dir)]
        self.arguments += ["--stop-timeout-ms", str(_HAND_OVER_MS), *arguments]
        self.http = ""
        """Where it serves its metrics; empty: nowhere."""

        self.flight = ""
        """Where it serves clients of Arrow Flight; empty: nowhere."""

        self.grpc = ""
        """Where it serves clients by gRPC; empty: nowhere."""

        self.module = "mq_cli.main"
        """What runs: tests put here one of their own, a broker that can be held still at chosen points."""

        self.environment: Mapping[str, str] | None = None
        """The process's, if it is another than ours: tests start brokers of another release by its PYTHONPATH."""

        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def status(self) -> int | None:
        """How the process ended (negative: by that signal); None if it runs or never ran."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Return at once: `LocalCluster.wait_until_serving` waits. Raises `ClusterFailed` if something listens on its
        port: that might be another cluster's broker, and answer in this one's place."""
        if self.pid is not None:
            return
        with socket.socket() as probe:
            if probe.connect_ex((HOST, self.port)) == 0:
                raise ClusterFailed(f"something listens on {self.address} already: end it, or choose another port")
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal is for whoever started us. Its standard input is a pipe that
            # we hold: when we are gone, however that happened, the broker sees it end and stops.
            self._process = self.popen(
                [sys.executable, "-m", self.module, *self.arguments, "--stop-at-eof"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=without_settings(os.environ) if self.environment is None else self.environment,
            )
        self.pid_path.write_text(f"{self._process.pid}\n")

    def terminate(self) -> None:
        """Ask it to stop cleanly; `wait` for it."""
        self.send_if_running(signal.SIGCONT)  # a paused process would not hear the next one
        self.send_if_running(signal.SIGTERM)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended in time."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        if self._process.stdin is not None:
            self._process.stdin.close()
        return True

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self.wait(STOP_TIMEOUT_S)

    def send_if_running(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)  # does nothing to a process that has ended

    def last_words(self) -> str:
        return f"its log {self.log_path} ends with:\n{self.log_tail()}"

    def log_tail(self) -> str:
        return tail(self.log_path, _LOG_TAIL_CHARACTERS)


class LocalCluster:
    """Owns N broker processes with ids 1 to N, and their ZooKeeper if there is more than one (or `zookeeper` is true).
    `zookeeper` may also be the address of one that runs already, `HOST:PORT/ROOT`: nobody else may use that root.

    All that they keep is below `directory`, which outlives them: `start` after `stop` goes on with the same data.
    Brokers listen on `port`, `port` + 1, …; 0 takes free ones. `http`: each serves its metrics at `http`, of a free
    port; a number is the first one's port, if these are free. `grpc` and `flight`: likewise gRPC and Arrow Flight.
    `arguments` go to every broker's command line as they are. With `certs` everything is over TLS, a ZooKeeper of its
    own too: what that directory lacks of certificates is made, and `security` is what clients need. `closed`: only the
    brokers may read and write their nodes in ZooKeeper, by a credential that is made in `directory`.
    """

    certs_by_default: Path | None = None
    """For tests, which run with TLS, and closed, by one switch."""

    user_by_default = "admin"
    """Whose certificate clients have."""

    once_they_serve: ClassVar[list[Callable[[LocalCluster], None]]] = []
    """For tests too: what `start` does at its end, such as making rules."""

    def __init__(
        self,
        directory: Path,
        brokers: int = 1,
        *,
        port: int = 0,
        zookeeper: bool | str | None = None,
        arguments: Sequence[str] = (),
        http: bool | int = False,
        flight: bool = False,
        grpc: bool | int = False,
        certs: Path | None = None,
        closed: bool = False,
    ) -> None:
        self.directory = directory.absolute()
        self.certs = certs or self.certs_by_default
        self.security: Security | None = None
        if self.certs is not None:
            self.security = _secure(self.certs, range(1, brokers + 1), self.user_by_default)
            arguments = [*arguments, "--certs", str(self.certs)]
        self.zookeeper: EmbeddedZooKeeper | None = None
        self.hosts = zookeeper if isinstance(zookeeper, str) else ""
        """The ZooKeeper's; empty if there is none."""

        if not self.hosts and (brokers > 1 if zookeeper is None else zookeeper):
            tls = None if self.certs is None else files_of_broker(self.certs, 1)
            self.zookeeper = EmbeddedZooKeeper(self.directory / "zookeeper", tls=tls)
            self.hosts = self.zookeeper.hosts
            if tls is not None:
                arguments = [*arguments, "--zookeeper-certs", str(self.certs)]
        self.credential: Path | None = None
        """The file with the brokers' credential for ZooKeeper; None: everybody may read and write there."""

        if self.hosts:
            coordination = ["--zookeeper", self.hosts]
            if closed or self.certs_by_default is not None:
                self.credential = self.directory / CREDENTIAL_FILE
                coordination += ["--zookeeper-auth", str(self.credential)]
        elif brokers == 1:
            coordination = ["--standalone"]
        else:
            raise ValueError("several brokers need a ZooKeeper between them")
        self.arguments = [*coordination, *arguments]
        """What every broker is given."""

        ports = [port + place if port else free_port(HOST) for place in range(brokers)]
        self.brokers = {
            place + 1: BrokerProcess(place + 1, ports[place], self.directory, self.arguments)
            for place in range(brokers)
        }
        self._open_further_ports(http=http, grpc=grpc, flight=flight)

    def _open_further_ports(self, **wished: bool | int) -> None:
        """Beside the ones that every broker has."""
        for name, wish in wished.items():
            for broker, address in zip(self.brokers.values(), self._further(wish), strict=True):
                setattr(broker, name, address)
                broker.arguments += [f"--{name}", address] if address else []

    def _further(self, wished: bool | int) -> list[str]:
        """An address for each broker, or nothing. A number is the first one's port, if these are free."""
        if wished is False:
            return [""] * len(self.brokers)
        ports = [wished + place for place in range(len(self.brokers))] if wished is not True else []
        found = ports if ports and all(map(is_free, ports)) else [free_port(HOST) for _ in self.brokers]
        return [f"{HOST}:{port}" for port in found]

    def __enter__(self) -> LocalCluster:
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

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    @property
    def grpc(self) -> str:
        """The same for clients of gRPC; empty if they are not served."""
        return ",".join(broker.grpc for broker in self.brokers.values() if broker.grpc)

    def start(
        self, progress: Callable[[str], None] = lambda _step: None, go_on: Callable[[], None] = lambda: None
    ) -> None:
        """Return when every broker serves. `progress` is told each step; `go_on` is called while waiting, and may raise
        to end it. Raises `ClusterFailed`, or as ZooKeeper's start does. What was started before runs on: `stop` ends
        it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.credential is not None:
            _make_credential(self.credential)
        if self.zookeeper is not None:
            progress(f"starting ZooKeeper on {self.zookeeper.hosts}")
            self.zookeeper.start(progress, go_on)
        for broker in self.brokers.values():
            go_on()
            progress(f"starting broker {broker.id} on {broker.address}")
            broker.start()
        self.wait_until_serving(go_on=go_on, progress=progress)
        for then in self.once_they_serve:
            then(self)

    def wait_until_serving(
        self,
        ids: Sequence[int] | None = None,
        timeout_s: float = LONG_S,
        go_on: Callable[[], None] = lambda: None,
        progress: Callable[[str], None] = lambda _step: None,
    ) -> None:
        """Until each of those brokers (default: all) answers and sees all of them registered."""
        patience, deadline = Patience(progress), time.monotonic() + timeout_s
        wanted = set(self.brokers if ids is None else ids)
        waiting = sorted(wanted)
        while waiting:
            go_on()
            for broker in (self.brokers[number] for number in wanted):
                if broker.status is not None:
                    raise ClusterFailed(
                        f"broker {broker.id} ended (status {broker.status}) before it served; {broker.last_words()}"
                    )
            waiting = [
                number for number in waiting if not _answers(self.brokers[number].address, wanted, self.security)
            ]
            if waiting and time.monotonic() > deadline:
                broker = self.brokers[waiting[0]]
                raise ClusterFailed(
                    f"broker {broker.id} did not serve on {broker.address} in {timeout_s:g} s; {broker.last_words()}"
                )
            if waiting:
                broker = self.brokers[waiting[0]]
                patience.waits_for(f"broker {broker.id} does not serve yet; its log is {broker.log_path}")
                time.sleep(_POLL_S)

    def stop(self) -> None:
        """Brokers first, all at once, each handing over what it leads; then ZooKeeper. Kills what does not end in
        time."""
        for broker in self.brokers.values():
            broker.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for broker in self.brokers.values():
            if not broker.wait(max(0.0, deadline - time.monotonic())):
                broker.kill()
        if self.zookeeper is not None:
            self.zookeeper.stop()

    def kill(self, broker: int) -> int:
        """kill -9; the id of the process that was. It must run."""
        pid = self.brokers[broker].pid
        if pid is None:
            raise ClusterFailed(f"broker {broker} is not running; {self.brokers[broker].last_words()}")
        self.brokers[broker].kill()
        return pid

    def restart(self, broker: int, *, wait: bool = True) -> None:
        """Start it again on its data; it must have ended (`kill`, or by itself)."""
        self.brokers[broker].start()
        if wait:
            self.wait_until_serving([broker])

    def logs(self) -> str:
        """The end of everybody's log, for whoever has to find out why."""
        parts = [
            f"---- broker {broker.id} (status {broker.status})\n{broker.log_tail()}" for broker in self.brokers.values()
        ]
        if self.zookeeper is not None:
            parts.append(f"---- zookeeper\n{self.zookeeper.log_tail()}")
        return "\n".join(parts)


def _make_credential(path: Path) -> None:
    from mq_broker.coordination.credential import Credential

    Credential.make(path)


def _secure(certs: Path, brokers: Iterable[int], user: str) -> Security:
    """What clients need, once every broker has a certificate for this machine, and `admin` and that user too."""
    from mq_client.security import Security
    from mq_dev import certificates

    certificates.make_missing(certs, HOST, brokers)
    certificates.make_user(certs, user)
    return Security(certs, user)


def _answers(address: str, wanted: set[int], security: Security | None) -> bool:
    """Whether that broker itself answers, and knows of all those."""
    from mq_client.cluster.client import Client
    from mq_client.cluster.lines import call_unary

    client = Client((), security)
    try:
        answer = call_unary(address, "Metadata", pb.MetadataRequest(), pb.MetadataResponse, ASK_TIMEOUT_S, client)
    except TritonMQError:
        return False
    return wanted <= {broker.id for broker in answer.brokers}
