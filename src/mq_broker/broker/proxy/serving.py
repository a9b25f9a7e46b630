"""A proxy from start to end: reads who the brokers are, and passes on to them all that clients ask.

Brokers do not know of it. It is registered nowhere, so it counts for no floor, no placement and no in-sync set. They
believe it as they believe a broker that passes on: by the secret that brokers share, and by a broker's certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

from mq_broker.broker.config import BrokerConfig
from mq_broker.broker.forwarding import Forwarding
from mq_broker.broker.judging import Judging
from mq_broker.broker.metadata.brokers import Cluster, Hints, joined
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.metrics.health import Systemd
from mq_broker.broker.ports import Offer, Ports
from mq_broker.broker.proxy.holding import Holding
from mq_broker.broker.proxy.leaders import Leaders
from mq_broker.broker.proxy.routing import Routing
from mq_broker.broker.runtime.arrivals import Arrivals
from mq_broker.broker.runtime.memory import Held, memory_high_by_default
from mq_broker.coordination.service import CoordinationService
from mq_broker.rpc import service as rpc_service
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.wire.entering import TokenDoor
from mq_protocol.errors import InvalidSetting
from mq_protocol.methods import BROKER

log = logging.getLogger(__name__)

SERVER_GRACE_S: Final = 0.2
NO_LIFE: Final = 0
"""Its incarnation. Where a broker has or had its id, brokers know that this is no life of that one."""


async def run(
    config: BrokerConfig, ready: Callable[[str], None] | None, stop: asyncio.Event, tasks: asyncio.TaskGroup
) -> None:
    """As `serve` (server.py), for the role `proxy`."""
    async with contextlib.AsyncExitStack() as undo:
        coordination = config.make_coordination()
        hints = Hints()
        if not await joined(coordination, hints, stop):
            return
        undo.push_async_callback(coordination.stop)
        secret = await coordination.peer_secret()
        if secret is None:
            raise InvalidSetting("--role proxy needs a cluster: a broker that stands alone serves no other")
        proxy = _Proxy(config, coordination, await coordination.cluster_id(), secret, tasks)
        undo.push_async_callback(proxy.close)
        hints.to = proxy.cluster
        await proxy.start()
        if ready is not None:
            ready(proxy.address)
        await stop.wait()
        log.info("proxy %d stops", config.broker)


class _Elsewhere:
    """Serves every method: nothing is answered here, since `Routing` gives each call another process."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name not in {method.attribute for method in BROKER.methods.values()}:
            raise AttributeError(name)

        def answered_here(*_: object) -> NoReturn:
            raise AssertionError(f"a proxy has answered {name} itself")

        return answered_here


class _Proxy:
    """Owns the parts of one running proxy, and the order in which they begin and end."""

    def __init__(
        self,
        config: BrokerConfig,
        coordination: CoordinationService,
        cluster_id: str,
        secret: bytes,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._running: list[asyncio.Task[None]] = []
        self._ports = Ports(config, alone=True)
        self.address = self._ports.tls_address or self._ports.address
        me, dialled = self._ports.registration(NO_LIFE), self._ports.peer_address_of
        self.cluster = Cluster(coordination, me, _nothing, _nothing, dialled, registers=False)
        self._topics = Topics(coordination, lambda _topics, _changed: None)
        self._judging = Judging(config, coordination, self.cluster)
        held = Held(config.memory_high or memory_high_by_default(), config.connections_max)
        proof = PeerProof(config.broker, NO_LIFE, cluster_id, secret)
        self._forwarding = Forwarding(self.cluster, proof, self._ports.dialling, held)
        leaders = Leaders(self.cluster, self._topics, coordination)
        holding = Holding(config.hold_max)
        self._routing = Routing(self.cluster, self._forwarding, leaders, holding, held, self._judging.acls.refresh)
        served = rpc_service.served(_Elsewhere(), self._judging.gate, rpc_service.Room(), self._routing)
        door = TokenDoor(self._judging.authenticators(), self._judging.audit)
        self._ports.serve(Offer(served, door, Arrivals(held)))

    async def start(self) -> None:
        """Serve. Raises `CoordinationUnavailable`, and `InvalidSetting` for an id that is a broker's."""
        if self._judging.audit is not None:
            await asyncio.to_thread(self._config.data_dir.mkdir, 0o750, parents=True, exist_ok=True)
        await self._judging.begin(self.address, self._spawn)
        await self.cluster.join()
        await self._topics.refresh()
        following = self.cluster.following(), self._topics.following(self.cluster.topics_changed)
        for each in (*following, *self._ports.periodic()):
            self._spawn(each.run(), each.name)
        await self._ports.start()
        Systemd().tell("READY=1")
        log.info(
            "proxy %d serves at %s, and passes on to brokers %s",
            self._config.broker,
            self.address,
            ", ".join(map(str, sorted(self.cluster.brokers))) or "that are not there yet",
        )

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """An error of it ends the process."""
        self._running.append(self._tasks.create_task(work, name=name))

    async def close(self) -> None:
        """End everything that runs."""
        for task in self._running:
            task.cancel()
        await self._ports.stop(SERVER_GRACE_S)
        await self._routing.close()
        await self._forwarding.close()
        if self._judging.audit is not None:
            await asyncio.to_thread(self._judging.audit.stop)


def _nothing() -> None:
    """Nobody here is to be told of brokers, or of a session."""
