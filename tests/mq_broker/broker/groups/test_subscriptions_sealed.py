"""What a subscription stream has opened of sealed partitions: each read is given its own, and no room is left taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.groups import subscriptions
from mq_broker.core.messages import Published
from mq_broker.storage.interface import NOTHING_UNSEALED, Unsealed
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.broker.groups.test_subscription_sessions import Readable, Stream, rounds, wanted

CHUNK = 50
"""Bytes: five batches of `Readable`."""

PLACE = pb.TopicPartition(topic="t", partition=0)

OPENED = 60
"""What they have in the journal."""


class Sealed(Readable):
    """One whose journal lies sealed on the disk. `opened`: what is opened of it; `given`: what each read was given;
    `asked`: from which entries on something was to be opened ahead."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.given: list[Unsealed] = []
        self.asked: list[int] = []
        self.opened = Unsealed(0, {})
        self.journal = SimpleNamespace(sealed=True, bytes_apart=self._bytes_apart, open_apart=self._open_apart)
        self.index = SimpleNamespace(
            log_start_offset=0, next_bytes=lambda _: 10, range=lambda at, *_: [Published(at, 2, at + 1, 1, 10, 10)]
        )

    def _bytes_apart(self, first: int, _last: int) -> int:
        self.asked.append(first)
        return OPENED

    async def _open_apart(self, _first: int, _last: int) -> Unsealed:
        return self.opened

    def read(self, start: int, end: int, bytes_max: int, unsealed: Any) -> Any:
        self.given.append(unsealed)
        return super().read(start, end, bytes_max, unsealed)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "FETCH_CHUNK_BYTES", CHUNK)


class Client:
    """Takes one message for each `take`."""

    def __init__(self) -> None:
        self.sent = asyncio.Event()
        self._takes = asyncio.Semaphore(0)

    async def send(self, _message: Any) -> None:
        self.sent.set()
        await self._takes.acquire()

    async def take(self, count: int) -> None:
        """So many messages, and the next one is sent by then, if there is one."""
        for _ in range(count):
            self._takes.release()
            await rounds()


@asynccontextmanager
async def written(
    *partitions: Sealed, starts: Sequence[int] = (0,), credit: int = 1 << 20
) -> AsyncIterator[tuple[Stream, Client]]:
    """A stream that has sent its first message, which says where it begins."""
    stream, client = Stream(*partitions), Client()
    places = (wanted(each.number, offset=start) for each, start in zip(partitions, starts, strict=True))
    await stream.open(*places, credit=credit)
    stream.session._over.clear()  # the client stays
    writing = asyncio.create_task(stream.session.write(client.send))
    try:
        async with asyncio.timeout(30):
            await client.sent.wait()
            yield stream, client
    finally:
        writing.cancel()
        await asyncio.wait([writing])
        stream.session.close()
    assert stream.delivery.held.bytes == 0


def test_no_read_is_given_what_was_opened_of_another_partition() -> None:
    """Also where one message has records of both."""

    async def main() -> None:
        little, much = Sealed(0), Sealed(1)
        async with written(little, much, starts=(96, 0)) as (_, client):
            await client.take(4)
        assert list(map(id, little.given)) == [id(little.opened)]
        assert much.given[0] is NOTHING_UNSEALED
        assert {id(given) for given in much.given[1:]} == {id(much.opened)}

    asyncio.run(main())


def test_a_stream_that_ends_gives_back_the_room_of_what_is_opened_ahead() -> None:
    async def main() -> None:
        async with written(Sealed()) as (stream, client):
            await client.take(1)
            before = stream.delivery.held.bytes
            stream.session.close()
            assert stream.delivery.held.bytes == before - OPENED

    asyncio.run(main())


def test_a_stream_that_has_nothing_to_send_keeps_nothing_opened() -> None:
    """It may stay so for as long as its client likes."""

    async def main() -> None:
        async with written(Sealed()) as (stream, client):
            await client.take(1)
            assert stream.delivery.held.bytes > OPENED, "the next chunk is opened"
            await stream.say(pb.SubscribeRequest(close=pb.SubscribeClose(partitions=[PLACE])))
            stream.session._over.clear()
            await client.take(1)
            assert stream.delivery.held.bytes == 0

    asyncio.run(main())


@pytest.mark.parametrize(("credit", "ahead"), [(2 * CHUNK, True), (2 * CHUNK - 10, False)])
def test_less_than_a_chunk_is_not_opened_ahead(credit: int, ahead: bool) -> None:
    """By the time it is read there may be credit for a whole one, and the rest would be opened on the event loop."""

    async def main() -> None:
        partition = Sealed()
        async with written(partition, credit=credit) as (_, client):
            await client.take(1)
            assert len(partition.asked) == ahead

    asyncio.run(main())
