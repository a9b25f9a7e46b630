"""Documents that several edit at once, and those that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from mq_broker.coordination.editing import Document
from mq_broker.coordination.interface import SecurityDocuments
from mq_broker.core.messages import CasOutcome
from mq_protocol.errors import CoordinationUnavailable


def load(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise CoordinationUnavailable(f"no number: {data!r}") from None


def dump(number: int) -> bytes:
    return b"%d" % number


def number() -> Document[int]:
    return Document("number", load, 0, "it stays")


class Store:
    """One document, which somebody else counts up before each of the first `meddled` writes."""

    def __init__(self, meddled: int = 0) -> None:
        self.documents = SecurityDocuments()
        self._meddled = meddled

    async def read(self) -> SecurityDocuments:
        return self.documents

    async def write(self, changes: Mapping[str, tuple[int, bytes]]) -> tuple[CasOutcome, int]:
        if self._meddled:
            self._meddled -= 1
            version, data = self.documents.documents.get("number", (-1, b"0"))
            self.put(dump(int(data) + 1), version)
        version, data = changes["number"]
        return self.put(data, version)

    def put(self, data: bytes, version: int) -> tuple[CasOutcome, int]:
        if self.documents.documents.get("number", (-1, b""))[0] != version:
            return CasOutcome.REFUSED, -1
        self.documents = SecurityDocuments(self.documents.version + 1, {"number": (version + 1, data)})
        return CasOutcome.DONE, self.documents.version


def test_an_edit_is_made_of_what_others_have_written_meanwhile() -> None:
    store = Store(meddled=3)
    assert asyncio.run(number().edit(store, "the number", lambda kept: kept + 10, dump)) == (3, 13, 4)
    assert store.documents.documents["number"][1] == b"13"


def test_an_edit_that_changes_nothing_writes_nothing() -> None:
    store = Store()
    store.put(b"5", -1)
    assert asyncio.run(number().edit(store, "the number", lambda kept: kept, dump)) == (5, 5, 1)
    assert store.documents.version == 1


def test_a_document_that_cannot_be_read_leaves_in_force_what_was_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, document = Store(), number()
    store.put(b"5", -1)
    assert (document.taken(store.documents), document.now) == (True, 5)
    store.put(b"five", 0)
    for _ in range(2):
        assert (document.taken(store.documents), document.now) == (False, 5)
    assert [record.getMessage() for record in caplog.records] == ["no number: b'five'. Until then it stays"]
    with pytest.raises(CoordinationUnavailable):
        asyncio.run(document.edit(store, "the number", lambda kept: kept + 1, dump))
    assert (document.taken(SecurityDocuments()), document.now) == (True, 0)
