"""A real ZooKeeper server as a child process, from the jars that pyspark carries: for `tritonmq dev`, tests, a first cluster.

Not an imitation, and not an ensemble: one server, on a loopback address. pyspark is looked up, never imported. A cluster that must
outlive a machine wants a ZooKeeper of its own; give brokers its address with --zookeeper.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from mq_protocol.errors import CoordinationUnavailable

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
TICK_MS = 250
"""ZooKeeper's unit: sessions end on its multiples, and are two of them or longer."""

SESSION_MS_MAX = 60_000
HEAP_MB = 256
_POLL_S = 0.05
_PORTS = (15_000, 32_000)
_LOG_TAIL_CHARACTERS = 2_000

_JARS = ("zookeeper-*.jar", "netty-*.jar", "slf4j-api-*.jar", "log4j-*.jar", "metrics-core-*.jar", "snappy-java-*.jar")

_WITHOUT = (
    "or give a running ZooKeeper with --zookeeper HOST:PORT; "
    "a single broker (--standalone, `tritonmq dev --brokers 1`) needs neither"
)

_CONFIG = """\
tickTime={tick_ms}
minSessionTimeout={session_ms_min}
maxSessionTimeout={session_ms_max}
dataDir={data_dir}
clientPort={port}
clientPortAddress={host}
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr,mntr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""

_LOGGING = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %-5p [%t] %c{1}: %m%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
"""


class EmbeddedZooKeeper:
    """Owns one server process and its data directory. May be killed and started again on the same directory and port.

    `port` 0 takes a free one, kept from then on. The log is `zookeeper.log` in the data directory.
    """

    def __init__(self, data_dir: Path | str, port: int = 0, host: str = "127.0.0.1") -> None:
        self.data_dir = Path(data_dir).absolute()
        self.host = host
        self.port = port or free_port(host)
        self.log_path = self.data_dir / "zookeeper.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        """What brokers take as --zookeeper."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Of the running server; None if there is none."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Return when the server answers. Raises `CoordinationUnavailable` saying what is missing or what the server said."""
        if self.pid is not None:
            return
        if _serves(self.host, self.port):
            raise CoordinationUnavailable(
                f"a ZooKeeper already listens on {self.hosts}: use it (--zookeeper {self.hosts}), or choose another port"
            )
        command = self._command()
        with self.log_path.open("ab") as log:
            # A process group of its own: Ctrl-C in the terminal is for whoever started us, who stops the brokers first.
            self._process = subprocess.Popen(  # noqa: S603 (our own command line)
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.data_dir, start_new_session=True
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _serves(self.host, self.port):
            if self._process.poll() is not None:
                raise CoordinationUnavailable(
                    f"ZooKeeper ended at once (status {self._process.returncode}); its log {self.log_path} says:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                self.stop()
                raise CoordinationUnavailable(
                    f"ZooKeeper did not answer on {self.hosts} within {START_TIMEOUT_S:g} s; see {self.log_path}"
                )
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Ask it to end, then make it. Nothing to do if it has ended."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)  # a stopped process would not hear the next one
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait(STOP_TIMEOUT_S)
        self._process = None

    def kill(self) -> None:
        """As a power cut would: SIGKILL. `start` brings it back with what it had synced."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def log_tail(self) -> str:
        try:
            return self.log_path.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]
        except OSError as error:
            return f"(no log: {error})"

    def _command(self) -> list[str]:
        java, jars = _find_java(), _find_jars()
        config, logging = self.data_dir / "zoo.cfg", self.data_dir / "log4j2.properties"
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            config.write_text(
                _CONFIG.format(
                    tick_ms=TICK_MS,
                    session_ms_min=2 * TICK_MS,
                    session_ms_max=SESSION_MS_MAX,
                    data_dir=self.data_dir / "data",
                    port=self.port,
                    host=self.host,
                )
            )
            logging.write_text(_LOGGING)
        except OSError as error:
            raise CoordinationUnavailable(
                f"cannot keep ZooKeeper's data in {self.data_dir}: {error}; give another --data"
            ) from error
        return [
            java,
            f"-Xmx{HEAP_MB}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # starts a third sooner; a server this small is never bound by its compiler
            "-Dzookeeper.preAllocSize=4096",  # kB of log reserved at a time; 64 MB would be most of a small cluster's disk
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            os.pathsep.join(str(jar) for jar in jars),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(config),
        ]


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home and (java := Path(home) / "bin" / "java").exists():
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise CoordinationUnavailable(
            f"ZooKeeper needs Java, and there is none in JAVA_HOME or on the PATH: install Java 17 or newer, {_WITHOUT}"
        )
    return found


def _find_jars() -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    folders = [Path(folder) / "jars" for folder in (spec.submodule_search_locations or [])] if spec is not None else []
    jars = sorted(jar for folder in folders for pattern in _JARS for jar in folder.glob(pattern))
    if not any(jar.name.startswith("zookeeper-") for jar in jars):
        where = f"{folders[0]} holds none" if folders else "pyspark is not installed"
        raise CoordinationUnavailable(
            f'the ZooKeeper server comes with pyspark, and {where}: pip install "tritonmq[spark]", {_WITHOUT}'
        )
    return jars


def _serves(host: str, port: int) -> bool:
    """It answers, and as a server that is ready: `srvr` names its mode only then."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0) as connection:
        connection.settimeout(1.0)
        connection.sendall(b"srvr")
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
        return b"Mode:" in answer
    return False


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on, from below the range out of which systems give ports to outgoing connections: a server that is
    killed and started again must find its port free. No other call in this process is given the same while there are others: whom
    it was given to may not listen yet."""
    for port in itertools.islice(_ports_by_chance(), 200):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            return port
    raise CoordinationUnavailable(f"no free port among {_PORTS[0]} to {_PORTS[1]} on {host}: end some of what listens there")


@functools.cache
def _ports_by_chance() -> Iterator[int]:
    return itertools.cycle(random.sample(range(*_PORTS), _PORTS[1] - _PORTS[0]))
