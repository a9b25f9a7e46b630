"""Closing the nodes of a cluster that was begun open: `tritonmq cluster secure-zookeeper`.

The cluster goes on meanwhile, since every broker has the credential already; that is checked first. The work may end at
any point, by kill -9 too: nodes that are closed and nodes that are not are all the same to brokers. Done again, it goes
on where it was.

From above: a node is closed before its children are listed, so nobody without the credential adds one that is not
seen, and from the root's closing on no broker starts without it. Brokers are told before (zookeeper_access.py), and
make closed nodes from then on. One that was slow to hear of it may have made an open one, so the tree is walked again
until a whole walk has found nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from mq_broker.coordination import documents
from mq_broker.coordination.credential import Credential
from mq_broker.coordination.kazoo_session import KazooSession
from mq_broker.coordination.zookeeper_access import CLOSED, CLOSING, ZooKeeperAccess
from mq_protocol.access.pem import Files
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, TritonMQError
from mq_protocol.limits import CONNECT_TIMEOUT_MS, SESSION_TIMEOUT_MS

_log = logging.getLogger(__name__)

SIDE_BY_SIDE: Final = 200
WALKS_MAX: Final = 20
HEAR_S: Final = 2.0
"""A broker that reaches ZooKeeper has heard of it by then."""


class Walked(NamedTuple):
    """How many nodes there are, how many of them were open, and the first of those."""

    nodes: int
    opened: int
    example: str


class Closing:
    """Owns a session of its own, in an `async with` block. `root`: the cluster's. Raises `CoordinationUnavailable`."""

    def __init__(self, hosts: str, credential: Credential, root: str = "/tritonmq", tls: Files | None = None) -> None:
        self._credential = credential
        self._session = KazooSession(
            hosts, SESSION_TIMEOUT_MS, CONNECT_TIMEOUT_MS, 2 * SESSION_TIMEOUT_MS, credential, tls
        )
        self.root = self._session.prefix + root
        self._access = ZooKeeperAccess(self._session, self.root, credential)

    async def __aenter__(self) -> Closing:
        await self._session.open(lambda _state: None)
        try:
            if await self._access.acls(self.root, self._session.deadline()) is None:
                raise InvalidRequest(
                    f"there is no cluster below {self.root} in ZooKeeper at {self._session.hosts}: correct --zookeeper"
                )
            await self._access.enter()
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._access.stop()
        await self._session.close()

    async def check(self) -> Walked:
        """Look at every node, and change none."""
        return await self._walk(close=False)

    async def close(self, progress: Callable[[Walked], None] = lambda _sofar: None) -> Walked:
        """Close every node. What is returned: all nodes, and how many of them this has closed. Raises `InvalidRequest`
        while a broker is registered that was started without the credential: it would be locked out."""
        await self._check_brokers()
        if self._access.state != CLOSED:
            await self._say(CLOSING)
            await asyncio.sleep(HEAR_S)
        opened, example = 0, ""
        for _ in range(WALKS_MAX):
            walked = await self._walk(close=True)
            opened, example = opened + walked.opened, example or walked.example
            await self._check_brokers()
            if not walked.opened:
                await self._say(CLOSED)
                return Walked(walked.nodes, opened, example)
            progress(Walked(walked.nodes, opened, example))
        raise CoordinationUnavailable(
            f"brokers go on making nodes that are open to everybody, such as {walked.example}: see that every broker "
            "reaches ZooKeeper, then do this again"
        )

    async def _say(self, state: str) -> None:
        node = self._access.node
        await self._session.ask_again(lambda client: client.set_async(node, state.encode()), self._session.deadline())

    async def _check_brokers(self) -> None:
        live = f"{self.root}/brokers/live"
        without = []
        for name in await self._children(live):
            path = f"{live}/{name}"
            try:
                data, _ = await self._session.ask_again(_getting(path), self._session.deadline())
                if not documents.load(data, documents.registration_of(name), path).zookeeper_auth:
                    without.append(name)
            except NoNodeError:
                continue
            except TritonMQError as error:
                raise InvalidRequest(f"whether broker {name} has the credential is unknown: {error}") from error
        if without:
            raise InvalidRequest(
                f"broker {', '.join(without)} runs without the credential, and would be locked out: start it again "
                "with --zookeeper-auth FILE first"
            )

    # ------------------------------------------------------------------ the tree

    async def _walk(self, *, close: bool) -> Walked:
        nodes, opened, example = 0, 0, ""
        level = [self.root]
        while level:
            below: list[str] = []
            for first in range(0, len(level), SIDE_BY_SIDE):
                chunk = level[first : first + SIDE_BY_SIDE]
                for path, was_open, children in await asyncio.gather(*(self._visit(path, close) for path in chunk)):
                    nodes += children is not None
                    opened += was_open
                    example = example or (path if was_open else "")
                    below += [f"{path}/{child}" for child in children or ()]
            level = below
        return Walked(nodes, opened, example)

    async def _visit(self, path: str, close: bool) -> tuple[str, bool, Sequence[str] | None]:
        """Whether the node was open, and its children; None if it is gone."""
        acls = await self._access.acls(path, self._session.deadline())
        if acls is None:
            return path, False, None
        was_open = not self._credential.closes(acls)
        if was_open and close:
            await self._close_one(path)
        return path, was_open, await self._children(path)

    async def _close_one(self, path: str) -> None:
        def closing(client: KazooClient) -> object:
            return client.set_acls_async(path, self._credential.acl)

        try:
            await self._session.ask_again(closing, self._session.deadline())
        except NoNodeError:
            return

    async def _children(self, path: str) -> list[str]:
        try:
            found: list[str] = await self._session.ask_again(
                lambda client: client.get_children_async(path), self._session.deadline()
            )
        except NoNodeError:
            return []
        return found


def _getting(path: str) -> Callable[[KazooClient], object]:
    return lambda client: client.get_async(path)
