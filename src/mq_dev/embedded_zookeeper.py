"""A real ZooKeeper server as a child process, from the jars that pyspark carries: for `tritonmq dev`, tests, a first
cluster.

Not an imitation. Alone it is one server, on a loopback address. Several are an ensemble: one beside each of three
brokers or more, which serves as long as most of them run. pyspark is looked up, never imported.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mq_process.patience import LONG_S, Patience
from mq_protocol.access.pem import Files, Pem, context, examine, read
from mq_protocol.errors import CoordinationUnavailable, InvalidSetting

STOP_TIMEOUT_S = 10.0
TICK_MS = 250
"""ZooKeeper's unit: sessions end on its multiples, and are two of them or longer."""

SESSION_MS_MAX = 60_000
HEAP_MB = 256
_POLL_S = 0.05
_GUARD = ("/bin/sh", "-c", "read -r _; kill -9 0")
"""Kills its process group when its standard input ends: when whoever holds the other end is gone, however that
happened."""

_PORTS = (15_000, 32_000)
_PORTS_TOGETHER = 50
_LOG_TAIL_CHARACTERS = 2_000

_JARS = ("zookeeper-*.jar", "netty-*.jar", "slf4j-api-*.jar", "log4j-*.jar", "metrics-core-*.jar", "snappy-java-*.jar")

_WITHOUT = (
    "or give a running ZooKeeper with --zookeeper HOST:PORT; "
    "a single broker (--standalone, `tritonmq dev --brokers 1`) needs neither"
)

_ENSEMBLE_MIN = 3
_ENSEMBLE_PORTS = (2888, 3888, 2181)
_SERVER = re.compile(r"(?P<number>\d{1,3})@(?P<host>[^\s,:@\[\]]+)(?P<ports>(:\d{1,5}){3})?")
_ANSWER_BYTES_MAX = 1 << 20

_CONFIG = """\
tickTime={tick_ms}
minSessionTimeout={session_ms_min}
maxSessionTimeout={session_ms_max}
dataDir={data_dir}
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr,mntr,conf
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""

_PLAIN = """\
clientPort={port}
clientPortAddress={host}
"""

_TLS = """\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort={port}
secureClientPortAddress={host}
ssl.clientAuth=need
client.certReload=true
{stores}"""

_TLS_AMONG_SERVERS = """\
sslQuorum=true
sslQuorumReloadCertFiles=true
ssl.quorum.clientAuth=need
{stores}"""

_STORES = """\
{prefix}.keyStore.location={pair}
{prefix}.keyStore.type=PEM
{prefix}.trustStore.location={ca}
{prefix}.trustStore.type=PEM
{prefix}.protocol=TLSv1.3
{prefix}.enabledProtocols=TLSv1.3
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


class EnsembleServer(NamedTuple):
    """One ZooKeeper server of several: where the others find it, and where clients do."""

    number: int
    host: str
    peer_port: int
    election_port: int
    client_port: int

    @property
    def client_address(self) -> str:
        return f"{self.host}:{self.client_port}"


class EmbeddedZooKeeper:
    """Owns one server process and its data directory. May be killed and started again on the same directory and port.

    `port` 0 takes a free one, kept from then on. The log is `zookeeper.log` in the data directory. `ensemble`: the
    servers of which this one is number `number`, which says its address too. `tls`: a certificate, its key and an
    authority, as of a broker; then all is over TLS, and a certificate of that authority is demanded. `renew` gives it
    what has been replaced.
    """

    def __init__(
        self,
        data_dir: Path | str,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        number: int = 0,
        ensemble: Sequence[EnsembleServer] = (),
        tls: Files | None = None,
    ) -> None:
        mine = next((server for server in ensemble if server.number == number), None)
        self.data_dir = Path(data_dir).absolute()
        self.host = mine.host if mine is not None else host
        self.port = mine.client_port if mine is not None else port or free_port(host)
        self.log_path = self.data_dir / "zookeeper.log"
        self._number = number
        self._tls = tls
        self._given: tuple[tuple[int, int, int], ...] = ()
        self._ensemble = tuple(ensemble)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid_path = self.data_dir / "zookeeper.pid"

    @property
    def hosts(self) -> str:
        """What brokers take as --zookeeper: of an ensemble all its servers, this one first."""
        others = [server.client_address for server in self._ensemble if server.number != self._number]
        return ",".join([f"{self.host}:{self.port}", *others])

    @property
    def pid(self) -> int | None:
        """Of the running server; None if there is none."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(
        self, progress: Callable[[str], object] = lambda _step: None, go_on: Callable[[], None] = lambda: None
    ) -> None:
        """Return when this server answers: one of an ensemble, when most of them run, which are started by hand
        perhaps. `progress` is told what is waited for; `go_on` is called while waiting, and may raise to end it. Raises
        `CoordinationUnavailable` saying what is missing or what the server said."""
        self.launch()
        patience, deadline = Patience(progress), time.monotonic() + LONG_S
        most = " with most of its ensemble" if self._ensemble else ""
        unheard = f"ZooKeeper does not answer on {self.host}:{self.port}{most}; its log is {self.log_path}"
        while not self._is_mine():
            if self._process is None or self._process.poll() is not None:
                status = None if self._process is None else self._process.returncode
                self.stop()
                self._check_port()
                raise CoordinationUnavailable(
                    f"ZooKeeper ended at once (status {status}); its log {self.log_path} says:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                self.stop()
                raise CoordinationUnavailable(f"after {LONG_S:g} s {unheard}")
            go_on()
            patience.waits_for(unheard)
            time.sleep(_POLL_S)

    def _check_port(self) -> None:
        if self._serves():
            at = f"{self.host}:{self.port}"
            raise CoordinationUnavailable(
                f"a ZooKeeper already listens on {at}: use it (--zookeeper {at}), or choose another port"
            )

    def _is_mine(self) -> bool:
        """Whether what answers on the port is the server that keeps its data here: another may have been quicker to
        take it."""
        if not self._serves():
            return False
        return f"dataDir={self.data_dir / 'data'}{os.sep}" in self._asked(b"conf").decode(errors="replace")

    def _serves(self) -> bool:
        """A server answers, which is ready: `srvr` names its mode only then."""
        return b"Mode:" in self._asked(b"srvr")

    def _asked(self, word: bytes) -> bytes:
        """The server's answer to a word of four letters; empty if it gives none."""
        answer = b""
        trusted = None if self._tls is None else context(read(self._tls), server=False)
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self.host, self.port), timeout=1.0) as plain,
            plain if trusted is None else trusted.wrap_socket(plain, server_hostname=self.host) as connection,
        ):
            connection.sendall(word)
            while (chunk := connection.recv(4096)) and len(answer) < _ANSWER_BYTES_MAX:
                answer += chunk
        return answer

    def launch(self) -> None:
        """Start the process, and do not wait for it to answer. Nothing to do if it runs."""
        if self.pid is not None:
            return
        self._end_what_was_left()
        self._check_port()
        command = self._command()
        self._end_guard()  # of a server that ended by itself
        with self.log_path.open("ab") as log:
            # A process group of its own: Ctrl-C in the terminal is for whoever started us, who stops the brokers first.
            # Its leader is a guard whose standard input we hold, as we hold a broker's.
            self._guard = subprocess.Popen(  # noqa: S603 (our own command line)
                _GUARD, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, process_group=0
            )
            self._process = subprocess.Popen(  # noqa: S603 (our own command line)
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
                process_group=self._guard.pid,
            )
        with contextlib.suppress(OSError):
            self._pid_path.write_text(f"{self._process.pid} {os.getpid()} {_started(os.getpid())}")

    def renew(self) -> bool:
        """Give the server its certificate and the authorities anew if their files were replaced, and return whether
        they were: it takes them for the connections to come. Raises `InvalidSetting` for files of no use, once for each
        time that they are replaced; the former ones stay. Raises `OSError` if they cannot be written now: the next
        call tries again."""
        if self._tls is None or self._tls.generation() == self._given:
            return False
        former, self._given = self._given, self._tls.generation()
        pem = read(self._tls)
        examine(pem, server=True)
        try:
            self._write_stores(pem)
        except OSError:
            self._given = former
            raise
        return True

    def _end_what_was_left(self) -> None:
        """End the server that a former owner of this directory left running when it was killed. One whose owner lives
        is not."""
        with contextlib.suppress(OSError, ValueError):
            left, owner, owner_started = map(int, self._pid_path.read_text().split())
            with contextlib.suppress(OSError):
                if _started(owner) == owner_started:
                    return
            if str(self._config_path).encode() not in Path(f"/proc/{left}/cmdline").read_bytes().split(b"\0"):
                return
            os.kill(left, signal.SIGKILL)  # as a power cut would: what it acknowledged is on its disk
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while Path(f"/proc/{left}/cmdline").read_bytes() and time.monotonic() < deadline:
                time.sleep(_POLL_S)

    @property
    def _config_path(self) -> Path:
        return self.data_dir / "zoo.cfg"

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
        self._end_guard()

    def kill(self) -> None:
        """As a power cut would: SIGKILL. `start` brings it back with what it had synced."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None
        self._end_guard()

    def _end_guard(self) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def log_tail(self) -> str:
        return tail(self.log_path, _LOG_TAIL_CHARACTERS)

    def _of_ensemble(self) -> str:
        """The lines that name the other servers, beside this one's number. Ten seconds to join, five to keep up."""
        if not self._ensemble:
            return ""
        data = self.data_dir / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self._number}\n")
        lines = [f"server.{s.number}={s.host}:{s.peer_port}:{s.election_port}" for s in self._ensemble]
        return "\n".join([f"initLimit={10_000 // TICK_MS}", f"syncLimit={5_000 // TICK_MS}", *lines, ""])

    def _ports(self) -> str:
        """The lines about the clients' port, and about TLS."""
        if self._tls is None:
            return _PLAIN.format(port=self.port, host=self.host)
        self._given = self._tls.generation()
        pair, ca = self._write_stores(read(self._tls))
        stores = [_STORES.format(prefix=prefix, pair=pair, ca=ca) for prefix in ("ssl", "ssl.quorum")]
        among = _TLS_AMONG_SERVERS.format(stores=stores[1]) if self._ensemble else ""
        return _TLS.format(port=self.port, host=self.host, stores=stores[0]) + among

    def _write_stores(self, pem: Pem) -> tuple[Path, Path]:
        """What Java reads: a certificate and its key in one file, and the authorities. They are copies, each put in
        place whole: the server sees when they change, and not when what a link in their path points to does."""
        stores = self.data_dir / "zookeeper.pem", self.data_dir / "zookeeper-ca.pem"
        for path, data in zip(stores, (pem.key + b"\n" + pem.certificate, pem.ca), strict=True):
            beside = path.with_suffix(".new")
            beside.unlink(missing_ok=True)
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            beside.replace(path)
        return stores

    def _command(self) -> list[str]:
        java, jars = _find_java(), _find_jars()
        config, logging = self._config_path, self.data_dir / "log4j2.properties"
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            config.write_text(
                _CONFIG.format(
                    tick_ms=TICK_MS,
                    session_ms_min=2 * TICK_MS,
                    session_ms_max=SESSION_MS_MAX,
                    data_dir=self.data_dir / "data",
                )
                + self._ports()
                + self._of_ensemble()
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
            # kB of log reserved at a time; 64 MB would be most of a small cluster's disk
            "-Dzookeeper.preAllocSize=4096",
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            os.pathsep.join(str(jar) for jar in jars),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(config),
        ]


def parse_ensemble(text: str) -> tuple[EnsembleServer, ...]:
    """The servers of `ID@HOST[:PEERPORT:ELECTIONPORT:CLIENTPORT],…`. Raises `InvalidSetting` showing what is wrong."""
    servers = []
    for part in text.split(","):
        found = _SERVER.fullmatch(part.strip())
        ports = (
            [int(port) for port in found["ports"].split(":")[1:]] if found and found["ports"] else list(_ENSEMBLE_PORTS)
        )
        if found is None or not all(0 < port < 65_536 for port in ports) or len(set(ports)) < len(ports):
            raise InvalidSetting(
                f"ZooKeeper server {part!r} is not ID@HOST or ID@HOST:PEERPORT:ELECTIONPORT:CLIENTPORT: give e.g. "
                "embedded:1@host1,2@host2,3@host3"
            )
        servers.append(EnsembleServer(int(found["number"]), found["host"], *ports))
    numbers = [server.number for server in servers]
    if len(set(numbers)) < len(numbers) or not all(0 < number < 256 for number in numbers):
        raise InvalidSetting(f"ZooKeeper servers {numbers} must have ids of their own, from 1 to 255")
    if len(servers) < _ENSEMBLE_MIN:
        raise InvalidSetting(
            f"an ensemble of {len(servers)} survives no loss: name {_ENSEMBLE_MIN} servers or more, or none"
        )
    return tuple(servers)


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
            f'the ZooKeeper server comes with pyspark, and {where}: pip install ".[spark]" in a clone, {_WITHOUT}'
        )
    return jars


def _started(process: int) -> int:
    """When a process was started, in ticks since the machine was: a number that is given again is told apart by it."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])


def tail(log: Path, characters: int) -> str:
    try:
        return log.read_text(errors="replace")[-characters:]
    except OSError as error:
        return f"(no log: {error})"


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on, from below the range out of which systems give ports to outgoing connections: a
    server that is killed and started again must find its port free. No other call in this process, or in another one of
    this user, is given the same while there are others: whom it was given to may not listen yet, or not just now."""
    for port in itertools.islice(_ports_by_chance(), 200):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            return port
    raise CoordinationUnavailable(
        f"no free port among {_PORTS[0]} to {_PORTS[1]} on {host}: end some of what listens there"
    )


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server can listen there now."""
    with socket.socket() as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind((host, port))
        except OSError:
            return False
        return True


@functools.cache
def _ports_by_chance() -> Iterator[int]:
    return itertools.cycle(_ports_of_slices())


def _ports_of_slices() -> Iterator[int]:
    """All ports, those first that no other process of this user gives away. A process owns a slice of them until it
    ends: a port whose server has been killed, and is to be started again, looks free to everybody else."""
    starts = range(*_PORTS, _PORTS_TOGETHER)
    shared = []
    for start in random.sample(starts, len(starts)):
        ports = range(start, start + _PORTS_TOGETHER)
        if _take(start):
            yield from random.sample(ports, len(ports))
        else:
            shared.append(ports)
    for ports in shared:
        yield from ports


_owned: list[int] = []
"""Descriptors whose locks say which slices are this process's. The system frees them when it ends."""


def _take(start: int) -> bool:
    """Own the slice that begins there. False: another process does, or its lock cannot be made."""
    try:
        directory = Path(tempfile.gettempdir()) / f"tritonmq-ports-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
        if directory.lstat().st_uid != os.getuid():
            return False
        descriptor = os.open(directory / str(start), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _owned.append(descriptor)
    return True
