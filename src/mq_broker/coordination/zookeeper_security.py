"""Security documents in ZooKeeper: a node each, and one that changes with every change, which alone is watched.

<root>/security/acls/<0..15>, revoked, quotas, tokens, floor    the documents
<root>/security/changes                                         its version counts the changes
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, ZookeeperError

from mq_broker.coordination.documents import check_security_documents
from mq_broker.coordination.interface import SECURITY_DOCUMENTS, SecurityDocuments
from mq_broker.coordination.kazoo_session import AnswerLost, KazooSession
from mq_broker.coordination.node_reads import NodeReads
from mq_broker.core.messages import CasOutcome
from mq_protocol.errors import CoordinationUnavailable

_log = logging.getLogger(__name__)

PATHS: Final = ("security/acls", "security/changes")
"""What is to be there, below the root."""


class ZooKeeperSecurity:
    """Owns the watch on the counter of changes."""

    def __init__(self, session: KazooSession, reads: NodeReads, root: str, changed: Callable[[], None]) -> None:
        self._session = session
        self._reads = reads
        self._home = f"{root}/security"
        self._watch = session.watch(changed)

    async def read(self) -> SecurityDocuments:
        deadline = self._session.deadline()
        # The counter first: a change after it was read fires the watch, even if what is read below already has it.
        _, stat = await self._session.ask_synced(
            lambda client: client.get_async(f"{self._home}/changes", watch=self._watch), deadline
        )
        read = (self._reads.read(f"{self._home}/{name}", deadline) for name in SECURITY_DOCUMENTS)
        found = zip(SECURITY_DOCUMENTS, await asyncio.gather(*read), strict=True)
        documents = {name: (int(node[1].version), node[0]) for name, node in found if node is not None}
        return SecurityDocuments(int(stat.version), documents)

    async def write(self, changes: Mapping[str, tuple[int, bytes]]) -> tuple[CasOutcome, int]:
        check_security_documents(changes)

        def build(transaction: TransactionRequest) -> None:
            for name, (expected, data) in changes.items():
                path = f"{self._home}/{name}"
                if expected < 0:
                    transaction.create(path, data)
                else:
                    transaction.set_data(path, data, expected)
            transaction.set_data(f"{self._home}/changes", b"")

        try:
            results: list[Any] = await self._session.commit(build, self._session.deadline())
        except (BadVersionError, NoNodeError, NodeExistsError):
            return CasOutcome.REFUSED, -1
        except (AnswerLost, CoordinationUnavailable, ZookeeperError) as error:
            _log.warning("whether security documents were changed is unknown: %s", error)
            return CasOutcome.UNKNOWN, -1
        return CasOutcome.DONE, int(results[-1].version)
