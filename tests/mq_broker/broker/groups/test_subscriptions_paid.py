"""What a consumer's credit is spent on."""

from __future__ import annotations

import pytest

from mq_broker.broker.groups import subscriptions as delivery
from mq_protocol.errors import OffsetOutOfRange, StorageFailed, TritonMQError
from tests.mq_broker.broker.groups.partitions import rounds
from tests.mq_broker.broker.groups.test_subscription_sessions import Readable, Stream, run, wanted


def test_credit_that_is_spent_to_the_last_byte_sends_no_more() -> None:
    async def scenario(stream: Stream) -> None:
        await stream.open(wanted(), credit=20)
        assert stream.message() == ([(0, 0)], [(0, 0), (0, 2)])
        assert stream.session._gather() is None
        await stream.credit(10)
        assert stream.message() == ([], [(0, 4)])

    run(Stream(), scenario)


@pytest.mark.parametrize("error", [OffsetOutOfRange("lost", 50), OffsetOutOfRange("damaged"), StorageFailed("damaged")])
def test_what_could_not_be_read_costs_no_credit(error: TritonMQError) -> None:
    async def scenario(stream: Stream) -> None:
        broken, whole = stream.partitions
        broken.fails = error
        await stream.open(wanted(0), wanted(1), credit=10)
        opened, batches = stream.message()
        assert (len(opened), batches) == (2, [(1, 0)])
        assert [(told.partition, told.error.code != 0) for told in stream.told()] == [(0, True)]
        broken.fails = None
        whole.changes()
        await rounds()
        await stream.credit(1)
        assert len(stream.message()[1]) == 1, "the credit was ten bytes, and one batch took them"

    run(Stream(Readable(0), Readable(1)), scenario)


def test_many_places_are_told_of_in_several_messages_and_batches_come_behind_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "TOLD_AT_ONCE", 2)

    async def scenario(stream: Stream) -> None:
        await stream.open(wanted(0), wanted(1), wanted(7), wanted(2), wanted(8), credit=25)
        session = stream.session
        sizes = [size for _, size in session._opened]
        assert (session._untold_bytes, session._next_bytes()) == (sum(sizes), (sum(sizes[:2]), sum(sizes[:2])))
        assert stream.message() == ([(0, 0), (1, 0)], [])
        assert stream.message() == ([(7, 0), (2, 0)], [])
        assert session._next_bytes()[1] == session._untold_bytes + 10, "a batch comes with the last of them"
        assert stream.message() == ([(8, 0)], [(0, 0), (0, 2), (1, 0)])
        assert session._untold_bytes == 0

    run(Stream(Readable(0), Readable(1), Readable(2)), scenario)
