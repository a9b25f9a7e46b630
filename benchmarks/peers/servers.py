"""The other brokers as child processes on this machine, three nodes each, on loopback addresses.

Each is set up as its documentation says a cluster of three is, with what it writes below one directory. What an
acknowledgement of each means is said in benchmarks/kafka/peers.py.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from mq_dev.embedded_zookeeper import free_port

HOST: Final = "127.0.0.1"
NODES: Final = 3
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.1
_LIBRARIES: Final = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)


class PeerFailed(Exception):
    """Another broker's process did not come up; the message has the end of its log."""


class Peer:
    """Owns the processes of one cluster. `addresses`: where clients connect, one a node."""

    def __init__(self, root: Path, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.directory = directory
        self.ports = [free_port(HOST) for _ in range(NODES)]
        self.addresses = [f"{HOST}:{port}" for port in self.ports]
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self) -> None:
        """Return when every node listens. Raises `PeerFailed`."""
        raise NotImplementedError

    def run(self, name: str, arguments: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Start a process of the cluster; it is ended with the others."""
        log = self.directory / f"{name}.log"
        libraries = ":".join(str(self.root / folder) for folder in _LIBRARIES)
        with log.open("ab") as out:
            process = subprocess.Popen(
                [str(argument) for argument in arguments],
                cwd=self.directory,
                env={**os.environ, "LD_LIBRARY_PATH": libraries, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append((process, log))

    def wait_until_listening(self, ports: Sequence[int]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        for port in ports:
            while not _listens(port):
                for process, log in self._processes:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise PeerFailed(
                            f"{log.stem} does not serve; its log ends with:\n{log.read_text(errors='replace')[-2_000:]}"
                        )
                time.sleep(_POLL_S)

    def stop(self) -> None:
        """The last started first; killed if that takes too long."""
        for process, _ in reversed(self._processes):
            process.terminate()
        for process, _ in reversed(self._processes):
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def __enter__(self) -> Peer:
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


class JetStream(Peer):
    """Three NATS servers with JetStream, storing in files."""

    def start(self) -> None:
        routes = [free_port(HOST) for _ in range(NODES)]
        known = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
        for node, (port, route) in enumerate(zip(self.ports, routes, strict=True), start=1):
            config = self.directory / f"nats-{node}.conf"
            config.write_text(
                f'server_name: "n{node}"\nlisten: "{HOST}:{port}"\n'
                f'jetstream {{ store_dir: "{self.directory / f"data-{node}"}" }}\n'
                f'cluster {{ name: "bench", listen: "{HOST}:{route}", routes: [{known}] }}\n'
            )
            self.run(f"nats-{node}", [self.root / "usr/sbin/nats-server", "-c", config])
        self.wait_until_listening(self.ports)


class Rabbit(Peer):
    """Three RabbitMQ nodes in one cluster, and the port mapper that they find each other by."""

    def start(self) -> None:
        mapper, home = free_port(HOST), self.directory / "home"
        home.mkdir(exist_ok=True)
        cookie = home / ".erlang.cookie"
        cookie.write_text("tritonmq-benchmarks")
        cookie.chmod(0o400)
        erlang = self.root / "usr/lib/erlang"
        common = {
            "HOME": str(home),
            "ERL_ROOTDIR": str(erlang),
            "ERL_EPMD_PORT": str(mapper),
            "PATH": f"{erlang / 'bin'}:{os.environ['PATH']}",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        [epmd] = erlang.glob("erts-*/bin/epmd")
        self.run("epmd", [epmd, "-address", HOST, "-port", str(mapper)], common)
        self.wait_until_listening([mapper])
        [programs] = self.root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin")
        config = self.directory / "rabbitmq.conf"
        nodes = [f"rabbit{node}@localhost" for node in range(1, NODES + 1)]
        lines = ["cluster_formation.peer_discovery_backend = classic_config"]
        lines += [
            f"cluster_formation.classic_config.nodes.{place} = {node}" for place, node in enumerate(nodes, start=1)
        ]
        config.write_text("\n".join(lines) + "\n")
        for node, port in zip(nodes, self.ports, strict=True):
            data = self.directory / node
            data.mkdir(exist_ok=True)
            mine = {
                "RABBITMQ_NODENAME": node,
                "RABBITMQ_NODE_IP_ADDRESS": HOST,
                "RABBITMQ_NODE_PORT": str(port),
                "RABBITMQ_DIST_PORT": str(free_port(HOST)),
                "RABBITMQ_MNESIA_BASE": str(data),
                "RABBITMQ_LOG_BASE": str(data),
                "RABBITMQ_CONFIG_FILE": str(config),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(data / "enabled_plugins"),
            }
            self.run(node, [programs / "rabbitmq-server"], common | mine)
        self.wait_until_listening(self.ports)
        waiting = [str(programs / "rabbitmqctl"), "-n", nodes[0], "await_online_nodes", str(NODES), "-t", "60"]
        done = subprocess.run(
            waiting,
            env={**os.environ, **common},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
        )
        if done.returncode:
            raise PeerFailed(f"RabbitMQ's nodes do not form a cluster: {(done.stdout + done.stderr)[-2_000:]}")


class Redis(Peer):
    """A primary and two replicas, each with an append-only file that is synced every second."""

    def start(self) -> None:
        for node, port in enumerate(self.ports, start=1):
            data = self.directory / f"data-{node}"
            data.mkdir(exist_ok=True)
            arguments = ["--bind", HOST, "--port", str(port), "--dir", str(data), "--save", ""]
            arguments += ["--appendonly", "yes", "--appendfsync", "everysec"]
            if node > 1:
                arguments += ["--replicaof", f"{HOST} {self.ports[0]}"]
            self.run(f"redis-{node}", [self.root / "usr/bin/redis-server", *arguments])
        self.wait_until_listening(self.ports)


PEERS: Final[dict[str, type[Peer]]] = {"NATS JetStream": JetStream, "RabbitMQ": Rabbit, "Redis": Redis}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
