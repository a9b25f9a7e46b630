"""What to do about documents in ZooKeeper that are not what TritonMQ writes: say so, once, and go on without.

Anybody with access can write there, and a newer version may. Whoever reads such a document must not take it for one
that is not there (trap 18), and the rest of the cluster has nothing to do with it. What "without" means, each reader
decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from mq_broker.coordination import documents
from mq_protocol.errors import CoordinationUnavailable, InternalError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Unreadable:
    """Owns what has been said of documents that cannot be read: each is told once for each content that it has."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def read(self, path: str, data: bytes, parse: Callable[[dict[str, Any]], T]) -> T | None:
        """What the document says; None if it cannot be read, which the log then says with what to do."""
        try:
            return self.require(path, data, parse)
        except CoordinationUnavailable:
            return None

    def require(self, path: str, data: bytes, parse: Callable[[dict[str, Any]], T]) -> T:
        """As `read`. Raises `CoordinationUnavailable` if it cannot be read: for those who ask again later."""
        try:
            found = documents.load(data, parse, path)
        except InternalError as error:
            what = (
                f"ZooKeeper: {error} Put back what was there; to delete the node instead is to delete what it stands "
                "for"
            )
            if self._told.get(path) != hash(data):
                self._told[path] = hash(data)
                _log.error("%s. Everything else continues", what)
            raise CoordinationUnavailable(what) from error
        self._told.pop(path, None)
        return found
