"""What a cluster is given once in ZooKeeper, by whichever broker comes first: its id, and the brokers' secret."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, ZookeeperError

from mq_broker.coordination import documents
from mq_broker.coordination.interface import Features
from mq_broker.coordination.kazoo_session import KazooSession
from mq_broker.coordination.node_reads import NodeReads
from mq_protocol.errors import InternalError
from mq_protocol.versions import LEVEL

_SECRET_BYTES: Final = 32
_CLUSTER_ID: Final = re.compile(rb"[0-9a-f]{32}")
_SECRET: Final = re.compile(rb"[0-9a-f]{64}")


class ZooKeeperIdentity:
    """Owns nothing. Methods as those of `CoordinationService`."""

    def __init__(self, session: KazooSession, reads: NodeReads, root: str) -> None:
        self._session = session
        self._reads = reads
        self._root = root

    async def cluster_id(self) -> str:
        found = await self._made_once("cluster_id", uuid.uuid4().hex.encode(), begin=self._begin_cluster)
        if not _CLUSTER_ID.fullmatch(found):
            raise InternalError(
                f"{self._root}/cluster_id does not hold 32 hex digits, as TritonMQ writes there: was it edited? Put "
                "back what was there; broker.json in each broker's data directory has it"
            )
        return found.decode()

    async def peer_secret(self) -> bytes:
        found = await self._made_once("security/peer_secret", secrets.token_hex(_SECRET_BYTES).encode())
        if not _SECRET.fullmatch(found):
            raise InternalError(
                f"{self._root}/security/peer_secret does not hold {2 * _SECRET_BYTES} hex digits, as TritonMQ "
                "writes there: was it edited? Stop all brokers, delete the node, and start them again"
            )
        return bytes.fromhex(found.decode())

    async def _begin_cluster(self, path: str, cluster_id: bytes) -> None:
        """Make the node, and with it the level of features: the highest, since no broker of an earlier release has
        written here. In one transaction, so that whoever finds the one finds the other."""
        features = documents.dump(documents.features_to_json(Features(LEVEL)))

        def make(client: KazooClient) -> Any:
            transaction = client.transaction()
            transaction.create(path, cluster_id)
            transaction.check(f"{self._root}/features", 0)  # nobody has raised it
            transaction.set_data(f"{self._root}/features", features)
            return transaction.commit_async()

        deadline = self._session.deadline()
        results = await self._session.ask_again(make, deadline)
        failed = any(isinstance(result, ZookeeperError) for result in results)
        if (
            failed and await self._reads.read(path, deadline) is None
        ):  # somebody has raised the level of a cluster without id
            await self._session.ask_again(lambda client: client.create_async(path, cluster_id), deadline)

    async def _made_once(
        self, name: str, mine: bytes, begin: Callable[[str, bytes], Awaitable[None]] | None = None
    ) -> bytes:
        """What that node holds, which is `mine` if nobody has made it before. `begin`: what makes it, in place of a
        plain write."""
        deadline = self._session.deadline()
        path = f"{self._root}/{name}"
        while (found := await self._reads.read(path, deadline)) is None:
            try:
                if begin is not None:
                    await begin(path, mine)
                else:
                    await self._session.ask_again(lambda client: client.create_async(path, mine), deadline)
            except NodeExistsError:
                continue
        return found[0]
