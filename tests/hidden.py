"""Brokers whose names mean something to a tunnel alone, so that no client can reach them past it.

As a program it is `tritonmq` in a process where `broker-1.hidden` and the like are this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from mq_dev.local_cluster import HOST, LocalCluster, free_port
from tests.mq_cli.processes import Command

DOMAIN = ".hidden"

C = TypeVar("C", bound=LocalCluster)


def name_of(broker: int) -> str:
    return f"broker-{broker}{DOMAIN}"


def hidden_cluster(directory: Path, brokers: int = 1, **options: Any) -> LocalCluster:
    """A cluster that advertises such names. Its own `bootstrap` is where it listens: `hidden_bootstrap` is for
    clients."""
    return hide(LocalCluster(directory, brokers, **options))


def hide(cluster: C) -> C:
    """The same of one that has not been started yet."""
    for number, broker in cluster.brokers.items():
        streams = free_port(HOST)
        broker.arguments += ["--advertise", f"{name_of(number)}:{broker.port}"]
        broker.arguments += [
            "--stream-listen",
            f"{HOST}:{streams}",
            "--stream-advertise",
            f"{name_of(number)}:{streams}",
        ]
    return cluster


def hidden_bootstrap(cluster: LocalCluster, brokers: Iterable[int] | None = None) -> str:
    numbers = cluster.brokers if brokers is None else brokers
    return ",".join(f"{name_of(number)}:{cluster.brokers[number].port}" for number in numbers)


class Proxy(AbstractContextManager["Proxy"]):
    """Owns a `tritonmq proxy` to such brokers, which can be killed and started again at the same address."""

    def __init__(self, bootstrap: str, *options: str) -> None:
        self.via = f"{HOST}:{free_port(HOST)}"
        self._options = ["proxy", "--listen", self.via, "--bootstrap", bootstrap, *options]
        self.command: Command | None = None

    def __enter__(self) -> Proxy:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.command is not None:
            self.command.__exit__(kind, error, trace)

    def start(self) -> None:
        """Return once it listens."""
        self.command = Command(*self._options, module="tests.hidden")
        assert self.command.line() == f"proxy {self.via}"

    def kill(self) -> None:
        assert self.command is not None
        self.command.process.kill()
        self.command.__exit__(None, None, None)
        self.command = None


def _main() -> None:
    import socket

    from mq_cli.main import main

    known = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return known(HOST if isinstance(name, str) and name.endswith(DOMAIN) else host, *args, **options)

    socket.getaddrinfo = getaddrinfo
    main()


if __name__ == "__main__":
    _main()
