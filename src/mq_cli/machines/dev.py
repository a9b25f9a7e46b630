"""`tritonmq dev`: a cluster of real processes in the foreground.

Starts, says when it is ready, tells of each process that ends, and ends all in order. Restarts nothing by itself: that
a broker can be lost, and brought back, is what there is to try.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click

from mq_cli.commands import command, flag, option, several
from mq_cli.interrupts import handling
from mq_cli.machines.console import DEFAULT_LISTEN
from mq_cli.output import say
from mq_cli.values import DIRECTORY
from mq_dev.embedded_zookeeper import is_free
from mq_dev.local_cluster import HOST, BrokerProcess, ClusterFailed, LocalCluster, without_settings

_LOOK_S = 0.2
PORT = 7400
METRICS_BEHIND = 20
GRPC_BEHIND = 40
"""Brokers serve their metrics, and gRPC, at ports so far behind their own."""

TRIAL = "trial"
"""The user of --authorize."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The cluster that is wanted."""

    count: int = option(
        "How many brokers. More than one also start a real ZooKeeper.",
        "--brokers",
        type=click.IntRange(1, 16),
        default=1,
    )
    port: int = option(
        "The brokers listen on this port, the next one, and so on. 0: free ports.",
        type=click.IntRange(0, 65_500),
        default=PORT,
    )
    data: Path | None = option(
        "Keep the data here. Default: a temporary directory, removed at the end.", type=DIRECTORY
    )
    zookeeper: bool | None = option(
        "Start a ZooKeeper even for one broker.", "--zookeeper/--no-zookeeper", default=None
    )
    auto_create: bool = flag("Create a topic when a producer or a consumer first names it.")
    secure: bool = flag("Speak TLS: make an authority and certificates, and say where they are (certs=DIR).")
    authorize: bool = flag(
        f"With --secure: make a user `{TRIAL}` too, with rules for what begins with `{TRIAL}-`, to try rights with."
    )
    console: bool = option("Serve pages that show it to a browser.", "--console/--no-console", default=True)

    def check(self) -> None:
        """Refuse options that make no sense together."""
        if self.authorize and not self.secure:
            raise click.UsageError(
                "--authorize goes with --secure: without certificates everybody is User:ANONYMOUS, and nobody can be "
                "told from others"
            )
        if self.zookeeper is False and self.count > 1:
            raise click.UsageError(
                "several brokers need a ZooKeeper between them: leave out --no-zookeeper, or use --brokers 1"
            )

    def cluster(self, directory: Path) -> LocalCluster:
        replicas = str(min(3, self.count))
        return LocalCluster(
            directory,
            self.count,
            port=self.port,
            zookeeper=self.zookeeper,
            arguments=["--auto-create", "--auto-create-replicas", replicas] if self.auto_create else [],
            certs=directory / "certs" if self.secure else None,
            http=self.port + METRICS_BEHIND if self.port else True,
            closed=True,
            grpc=self.port + GRPC_BEHIND if self.port else True,
        )


@command(short_help="Run a local cluster in the foreground, for trials.")
def dev(trial: Trial = several(Trial)) -> None:
    """Run a local cluster in the foreground, for trials.

    Prints one line when every broker serves: `ready bootstrap=HOST:PORT,… grpc=HOST:PORT,…`, and with --secure
    `certs=DIR` behind it. Clients in other languages use gRPC.
    Ctrl-C ends it. With --secure rights are judged, and the user `admin` may do everything.
    """
    trial.check()
    stop = threading.Event()

    def asked_to_stop(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt  # asked twice: do not wait any longer than it takes to end the processes
        stop.set()

    ends: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with _directory(trial.data) as directory, handling(dict.fromkeys(ends, asked_to_stop)):
        cluster = trial.cluster(directory)
        try:
            cluster.start(progress=say, go_on=lambda: _check(stop))
            if trial.authorize:
                _make_trial_user(cluster)
            _say_ready(cluster, authorize=trial.authorize)
            say(f"logs and data: {directory}{'' if trial.data else ' (removed at the end)'}; Ctrl-C ends it")
            with running_console(cluster, directory, trial.port) if trial.console else nullcontext():
                _watch(cluster, stop)
        except ClusterFailed as error:
            raise click.ClickException(str(error)) from error
        except _Stopped:
            pass
        finally:
            with suppress(OSError):  # Ctrl-C ends the reader of a pipe before us
                say("stopping")
            cluster.stop()


def _make_trial_user(cluster: LocalCluster) -> None:
    """Its certificate, and its first rules."""
    from mq_client import AclRule, Admin
    from mq_dev.certificates import make_user
    from mq_protocol.access.rights import Kind, Operation

    assert cluster.certs is not None
    make_user(cluster.certs, TRIAL)
    rights = [(Kind.TOPIC, each) for each in (Operation.READ, Operation.WRITE, Operation.CREATE)]
    rights.append((Kind.GROUP, Operation.READ))
    with Admin(cluster.bootstrap, security=cluster.security, forward=False) as admin:
        admin.alter_acls([AclRule(f"User:{TRIAL}", right, kind, f"{TRIAL}-", prefix=True) for kind, right in rights])


def _say_ready(cluster: LocalCluster, *, authorize: bool) -> None:
    """The line that programs read, and what a person wants to know."""
    brokers = list(cluster.brokers.values())
    certs = [f"certs={cluster.certs}"] if cluster.certs is not None else []
    click.echo(" ".join([f"ready bootstrap={cluster.bootstrap}", f"grpc={cluster.grpc}", *certs]))
    sys.stdout.flush()
    scheme = "https" if cluster.certs is not None else "http"
    for broker in brokers:
        say(f"broker {broker.id}: process {broker.pid}, metrics {scheme}://{broker.http}/metrics")
    if cluster.certs is not None:
        _say_who(cluster.certs, authorize=authorize)


def _say_who(certs: Path, *, authorize: bool) -> None:
    """Which users there are, and how another is made."""
    from mq_dev.certificates import authority_key

    say("rights are judged; User:admin may do everything: export TRITONMQ_USER=admin")
    if authorize:
        say(f"User:{TRIAL} may use topics and groups that begin with {TRIAL}-: export TRITONMQ_USER={TRIAL}")
    say(f"another user: tritonmq cert create-client NAME --dir {certs} --ca-key {authority_key(certs)}")


class _Stopped(Exception):
    """Asked to stop while starting."""


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise _Stopped


def _watch(cluster: LocalCluster, stop: threading.Event) -> None:
    """Tell of each process that ends, once, until asked to stop."""
    told: set[object] = set()
    while not stop.wait(_LOOK_S):
        for broker in cluster.brokers.values():
            if broker.status is not None and broker not in told:
                told.add(broker)
                say(f"broker {broker.id} {_how(broker.status)}; the others go on. Its log: {broker.log_path}")
                say(f"  bring it back with: {_command(broker)}")
        zookeeper = cluster.zookeeper
        if zookeeper is not None and zookeeper.pid is None and zookeeper not in told:
            told.add(zookeeper)
            say(
                "ZooKeeper has ended: brokers serve, but nothing can be elected or created. Its log: "
                f"{zookeeper.log_path}"
            )


def _how(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _command(broker: BrokerProcess) -> str:
    return " ".join(["tritonmq", *broker.arguments])


@contextmanager
def _directory(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data.absolute()
        return
    temporary = Path(tempfile.mkdtemp(prefix="tritonmq-dev-"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


CONSOLE_BEHIND = int(DEFAULT_LISTEN.rpartition(":")[2]) - PORT

_STOP_S = 10.0
_OF_THE_USER = (
    "TRITONMQ_CERTS",
    "TRITONMQ_USER",
    "TRITONMQ_TOKEN_FILE",
    "TRITONMQ_FORWARD",
    "TRITONMQ_PROFILE",
)


@contextlib.contextmanager
def running_console(cluster: LocalCluster, directory: Path, port: int) -> Iterator[None]:
    """A process as long as the block; it says its address on standard error. It listens so far behind the first
    broker's port as its usual one is behind their usual one; on a free port, if that is taken or `port` is 0. Nothing
    without the packages that it needs."""
    if importlib.util.find_spec("starlette") is None:
        say("to look at it in a browser: pip install '.[console]' in a clone of TritonMQ")
        yield
        return
    usual = port + CONSOLE_BEHIND
    listen = f"{HOST}:{usual if port and is_free(usual) else 0}"
    words = ["console", "--bootstrap", cluster.bootstrap, "--listen", listen, "--stop-at-eof"]
    environment = {
        name: value
        for name, value in without_settings(os.environ).items()
        if name not in _OF_THE_USER and not name.startswith("TRITONMQ_CONSOLE_")
    }
    environment["XDG_CONFIG_HOME"] = str(directory)  # not the user's own file
    if cluster.certs is not None:
        from mq_dev.certificates import ADMIN

        environment |= {"TRITONMQ_CERTS": str(cluster.certs), "TRITONMQ_USER": ADMIN}
    with (directory / "console.log").open("wb") as log:
        # Its standard input is a pipe that this process holds: when that is gone, however that happened, it ends
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, "-m", "mq_cli.main", *words],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            stderr=log,
            start_new_session=True,
            env=environment,
        )
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
