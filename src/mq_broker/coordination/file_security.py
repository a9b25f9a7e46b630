"""Security documents of a broker that stands alone: a part of its one document."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from mq_broker.coordination.documents import check_security_documents
from mq_broker.coordination.interface import SecurityDocuments
from mq_broker.core.messages import CasOutcome
from mq_protocol.errors import CoordinationUnavailable

_log = logging.getLogger(__name__)

Change: TypeAlias = Callable[[SecurityDocuments], SecurityDocuments | None]


class FileSecurity:
    """Owns nothing. `now`: the documents as they are; `change`: stores what is made of them, and returns the new
    version, or None where nothing is made of them."""

    def __init__(self, now: Callable[[], SecurityDocuments], change: Callable[[Change], Awaitable[int | None]]) -> None:
        self._now = now
        self._change = change

    async def read(self) -> SecurityDocuments:
        return self._now()

    async def write(self, changes: Mapping[str, tuple[int, bytes]]) -> tuple[CasOutcome, int]:
        check_security_documents(changes)
        try:
            version = await self._change(lambda documents: documents.changed(changes))
        except CoordinationUnavailable as error:
            _log.warning("whether security documents were changed is unknown: %s", error)
            return CasOutcome.UNKNOWN, -1
        return (CasOutcome.REFUSED, -1) if version is None else (CasOutcome.DONE, version)
