"""How often each broker has been started, and how far its data directory had come, in ZooKeeper."""

from __future__ import annotations

from kazoo.exceptions import NoNodeError

from mq_broker.coordination import documents
from mq_broker.coordination.interface import LIVES_BEHIND_MAX
from mq_broker.coordination.kazoo_session import KazooSession
from mq_broker.coordination.node_reads import NodeReads
from mq_broker.coordination.unreadable import Unreadable
from mq_protocol.errors import InvalidSetting


class ZooKeeperLives:
    """Owns nothing. Methods as those of `CoordinationService`. `home`: the node below which brokers have theirs."""

    def __init__(self, session: KazooSession, reads: NodeReads, unreadable: Unreadable, home: str) -> None:
        self._session = session
        self._reads = reads
        self._unreadable = unreadable
        self._home = home

    async def begin(self, broker: int, above: int) -> int:
        path = f"{self._home}/lives/{broker}"
        while True:
            # Asked again after a lost answer it may count twice: an incarnation must grow, not be dense.
            count = await self._set(path, b"")
            if count > above:
                return count
            if above - count > LIVES_BEHIND_MAX:
                raise InvalidSetting(
                    f"ZooKeeper counts {count} starts of broker {broker}, and its data directory {above}: was another "
                    "backup put back? Restore the right one"
                )

    async def known_stamp(self, broker: int) -> int:
        path = f"{self._home}/stamps/{broker}"
        found = await self._reads.read(path, self._session.deadline())
        if found is None or not found[0]:
            return 0
        return self._unreadable.read(path, found[0], documents.stamp_from_json) or 0

    async def keep_stamp(self, broker: int, stamp: int) -> None:
        await self._set(f"{self._home}/stamps/{broker}", documents.dump(documents.stamp_to_json(stamp)))

    async def _set(self, path: str, data: bytes) -> int:
        """The node, made if it is not there yet, holds that. Returns its version."""
        deadline = self._session.deadline()
        while True:
            try:
                stat = await self._session.ask_again(lambda client: client.set_async(path, data), deadline)
                return int(stat.version)
            except NoNodeError:
                await self._session.ask_again(lambda client: client.ensure_path_async(path), deadline)
