"""The console that `tritonmq dev` starts beside its cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mq_cli.console import DEFAULT_LISTEN
from mq_cli.output import say
from mq_dev.embedded_zookeeper import is_free
from mq_dev.local_cluster import HOST, LocalCluster, without_settings

PORT = 7400
CONSOLE_BEHIND = int(DEFAULT_LISTEN.rpartition(":")[2]) - PORT

_STOP_S = 10.0
_OF_THE_USER = (
    "TRITONMQ_CERTS",
    "TRITONMQ_USER",
    "TRITONMQ_TOKEN_FILE",
    "TRITONMQ_VIA",
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
