"""What several may edit at once: it is read, changed, and written unless somebody came between; if so, all again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, TypeVar

from mq_broker.coordination.interface import SecurityDocuments
from mq_broker.coordination.service import SecurityStore
from mq_broker.core.messages import CasOutcome
from mq_protocol.errors import CoordinationUnavailable, OutcomeUnknown

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 20
PAUSE_S: Final = 0.02

T = TypeVar("T")
Changes = Mapping[str, tuple[int, bytes]]
"""Of documents by name: the version that each is expected to have, and its new contents."""


async def until_written(attempt: Callable[[], Awaitable[T | None]], what: str) -> T:
    """The first answer of `attempt`, which is None for what was not written. Raises what `attempt` raises, and
    `OutcomeUnknown` when others keep changing `what`."""
    for number in range(ATTEMPTS_MAX):
        if number:
            await asyncio.sleep(random.uniform(0, PAUSE_S * number))  # noqa: S311 - two who met should not meet again
        if (done := await attempt()) is not None:
            return done
    raise OutcomeUnknown(f"{what} kept changing, or the answers were lost: look at what is there, then ask again")


async def edit_documents(
    store: SecurityStore, what: str, change: Callable[[SecurityDocuments], Awaitable[Changes]]
) -> int:
    """Write what `change` makes of the documents, all of it or nothing. The version of them all that holds it, or that
    held it already. `change` may be asked several times."""

    async def attempt() -> int | None:
        found = await store.read()
        changes = await change(found)
        if not changes:
            return found.version
        outcome, version = await store.write(changes)
        return version if outcome is CasOutcome.DONE else None

    return await until_written(attempt, what)


class Document(Generic[T]):
    """One security document. Owns it as it was read last: `now`. What cannot be read leaves that as it is."""

    def __init__(self, name: str, load: Callable[[bytes], T], empty: T, until_then: str) -> None:
        self._name, self._load, self._empty, self._until_then = name, load, empty, until_then
        self.now = empty
        self._data: bytes | None = None
        self._told = ""

    def taken(self, found: SecurityDocuments) -> bool:
        """These were read. Whether this document could be."""
        data = found.documents[self._name][1] if self._name in found.documents else None
        if data != self._data:
            try:
                self.now = self._load(data) if data is not None else self._empty
            except CoordinationUnavailable as error:
                if self._told != str(error):
                    self._told = str(error)
                    log.error("%s. Until then %s", error, self._until_then)  # noqa: TRY400
                return False
        self._data, self._told = data, ""
        return True

    def kept(self, found: SecurityDocuments) -> tuple[int, T]:
        """Its version, and what is in it. Raises `CoordinationUnavailable` if it cannot be read."""
        if self._name not in found.documents:
            return -1, self._empty
        version, data = found.documents[self._name]
        return version, self._load(data)

    async def edit(
        self, store: SecurityStore, what: str, change: Callable[[T], T], dump: Callable[[T], bytes]
    ) -> tuple[T, T, int]:
        """What was in it, what is, and the version of all documents that says so. Raises as `edit_documents` does."""
        before = after = self._empty

        async def changes(found: SecurityDocuments) -> Changes:
            nonlocal before, after
            version, before = self.kept(found)
            after = change(before)
            return {} if after == before else {self._name: (version, dump(after))}

        version = await edit_documents(store, what, changes)
        return before, after, version
