"""Who may read and write a cluster's nodes in ZooKeeper: the brokers alone, or everybody who reaches it.

A cluster is *closed* if every node below its root may be read and written by the brokers' identity alone
(credential.py). A cluster that a broker with a credential begins is closed from its first node on. One that was begun
without is *open*: brokers are given the credential one after another, and go on making open nodes, which those without
can use. Then `tritonmq cluster secure-zookeeper` closes it (zookeeper_closing.py). From its first step on the cluster
is *closing*: brokers make closed nodes.

    <root>/security/access      closed from the beginning. What it holds: open, closing or closed. Who may not read it
                                has another credential
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError, ZookeeperError
from kazoo.security import ACL

from mq_broker.coordination.credential import Credential, open_to_all
from mq_broker.coordination.kazoo_session import KazooSession
from mq_protocol.errors import CoordinationUnavailable

_log = logging.getLogger(__name__)

OPEN: Final = "open"
CLOSING: Final = "closing"
CLOSED: Final = "closed"

_RETRY_S: Final = 1.0


class ZooKeeperAccess:
    """Owns what a session's new nodes have as their access list. `state`: OPEN, CLOSING or CLOSED; empty until it was
    read."""

    def __init__(self, session: KazooSession, root: str, credential: Credential | None) -> None:
        self.state = ""
        self.node = f"{root}/security/access"
        self._session = session
        self._root = root
        self._credential = credential
        self._looking: asyncio.Task[None] | None = None

    async def enter(self) -> None:
        """Before anything else is read or made. Raises `CoordinationUnavailable`, which says what to do, if the nodes
        are another credential's."""
        deadline = self._session.deadline()
        acls = await self.acls(self._root, deadline)
        if acls is None:
            if self._credential is not None:
                self._session.new_nodes(self._credential.acl)
            await self._session.ask_again(lambda client: client.ensure_path_async(self._root), deadline)
            acls = await self.acls(self._root, deadline) or []
        if self._credential is None:
            self.state = OPEN if open_to_all(acls) else CLOSED
            return
        closed = self._credential.closes(acls)
        while (said := await self._said(deadline)) is None:
            await self._make(CLOSED if closed else OPEN, self._credential.acl, deadline)
        self._take(said, closed=closed)

    def warn(self) -> None:
        """In the log, if everybody may write here."""
        if self.state == OPEN:
            _log.warning(
                "everybody who reaches ZooKeeper at %s may read and write this cluster's nodes below %s: give every "
                "broker --zookeeper-auth FILE, then `tritonmq cluster secure-zookeeper`",
                self._session.hosts,
                self._root,
            )

    async def acls(self, path: str, deadline: float) -> list[ACL] | None:
        """The access list of a node; None if there is none."""
        try:
            found, _ = await self._session.ask_again(lambda client: client.get_acls_async(path), deadline)
        except NoNodeError:
            return None
        return list(found)

    def _take(self, said: str, *, closed: bool) -> None:
        """`said`: by the node. `closed`: the root is."""
        assert self._credential is not None
        if closed:
            self.state = CLOSED if said == CLOSED else CLOSING
        else:  # what the node says is not enough: somebody may have opened the root again
            self.state = CLOSING if said == CLOSING else OPEN
        self._session.new_nodes(self._credential.acl if self.state != OPEN else None)

    async def _said(self, deadline: float) -> str | None:
        """What the node says; None if there is none."""
        try:
            data, _ = await self._session.ask_again(
                lambda client: client.get_async(self.node, watch=self._session.watch(self.look_again)), deadline
            )
        except NoNodeError:
            return None
        return str(data.decode("ascii", "replace"))

    async def _make(self, first: str, closed: list[ACL], deadline: float) -> None:
        home = self.node.rpartition("/")[0]
        await self._session.ask_again(lambda client: client.ensure_path_async(home), deadline)

        def make(client: KazooClient) -> object:
            return client.create_async(self.node, first.encode(), acl=closed)

        with contextlib.suppress(NodeExistsError):
            await self._session.ask_again(make, deadline)

    # ------------------------------------------------------------------ changes

    def look_again(self) -> None:
        """The state may have changed: read it, and do not wait for that."""
        if self._credential is None or not self.state:
            return
        if self._looking is not None:
            self._looking.cancel()
        self._looking = asyncio.create_task(self._look_again(), name="who may write in ZooKeeper")

    async def _look_again(self) -> None:
        told = ""
        while True:
            try:
                deadline = self._session.deadline()
                before = self.state
                acls, said = await self.acls(self._root, deadline), await self._said(deadline)
            except (CoordinationUnavailable, ZookeeperError) as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning("who may write in ZooKeeper cannot be read: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            if acls is None or said is None:  # somebody removes the cluster: nothing of it is made again
                return
            self._take(said, closed=self._credential is not None and self._credential.closes(acls))
            if self.state != before:
                _log.info("this cluster's nodes in ZooKeeper were %s, and are %s", before, self.state)
            return

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
