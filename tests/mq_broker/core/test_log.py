"""What a log says of its entries' sizes: messages between brokers and the bound on the tail are made by it."""

from __future__ import annotations

import pytest

from mq_broker.core.entries import (
    Append,
    Decide,
    Discard,
    Entry,
    Finish,
    MoveCursor,
    Operation,
    Publish,
    Stage,
    StagedBatches,
    TransactionKey,
    stored_bytes,
)
from mq_broker.core.log import Log
from mq_broker.storage.frame import Place, encode

KEY = TransactionKey("query" * 20, "sink")
UUIDS = tuple(n.to_bytes(16, "big") for n in range(1000))
OPERATIONS: list[Operation] = [
    Append(),
    Stage(KEY, 7, "run" * 1000),
    Publish(KEY, 7, UUIDS),
    Discard(KEY, UUIDS),
    MoveCursor("group" * 50, 10, "consumer"),
    Decide(KEY, 7, "run", 10, tuple(StagedBatches("topic" * 40, n, UUIDS[:3], 3) for n in range(1000))),
    Finish(KEY, 7),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_an_entry_takes_about_what_its_size_says_and_never_much_more(operation: Operation) -> None:
    entry = Entry(1, 1, 0, operation)
    size = encode(Place("t", 0), entry).size
    assert size <= stored_bytes(entry) <= 1.2 * size + 128


def test_a_message_holds_only_as_many_large_decisions_as_fit() -> None:
    log = Log(tuple(Entry(index, 1, 0, Publish(KEY, index, UUIDS)) for index in range(1, 11)))
    size = stored_bytes(log.entry(1))
    assert log.range_end(1, 1000, 3 * size) == 3
    assert log.range_end(1, 1000, 1) == 1
    assert log.tail_bytes == 10 * size
    log.take_applied()
    log.truncate(5)
    assert log.tail_bytes == 4 * size
