"""Calls to a broker as tests speak them by hand: with serialized messages, as they are in `mq.proto`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.message import Message

from mq_broker.rpc.calls import opening
from mq_broker.rpc.service import is_envelope
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import OutcomeUnknown, TritonMQError
from mq_protocol.methods import BROKER, PEER, Kind, Method
from mq_protocol.wire.connection import Connection, connect
from mq_protocol.wire.envelope import Buffer, halves, joined

CONNECT_S = 20.0


class Channel:
    """Calls to the broker at `address`, each by a connection of its own. `shown`: what each call carries, as fields of
    `CallOpen`."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None, **shown: Any) -> None:
        self.address = address
        self._tls = tls
        self._shown = shown
        self._open: set[Call] = set()

    def call(self, name: str, timeout_s: float | None = None, **shown: Any) -> Call:
        """A call of that method, which begins with what is asked first. The broker ends it after `timeout_s`."""
        opened = opening(name, timeout_s)
        opened.MergeFrom(pb.CallOpen(**{**self._shown, **shown}))
        call = Call(self, opened)
        self._open.add(call)
        return call

    async def ask(self, name: str, data: bytes, timeout_s: float = CONNECT_S, **shown: Any) -> bytes:
        """One request, one answer. Raises what the broker does, and `OutcomeUnknown` after `timeout_s`."""
        call = self.call(name, timeout_s, **shown)
        try:
            async with asyncio.timeout(timeout_s):
                await call.write(data)
                await call.end()
                answer = await call.read()
        except TimeoutError as late:
            raise OutcomeUnknown(f"broker at {self.address} did not answer in time: ask again") from late
        finally:
            call.cancel()
        assert answer is not None, "it was ended without an answer"
        return answer

    async def begin(self, name: str, *requests: Message, **shown: Any) -> Call:
        """A call at which that was asked, and the end said unless more may be."""
        call = self.call(name, None, **shown)
        for request in requests:
            await call.write(request.SerializeToString())
        if BROKER.methods[name].kind is not Kind.CONVERSATION:
            await call.end()
        return call

    async def answers(self, name: str, data: bytes, **shown: Any) -> AsyncIterator[bytes]:
        """One request, all answers."""
        call = self.call(name, None, **shown)
        try:
            await call.write(data)
            await call.end()
            while (answer := await call.read()) is not None:
                yield answer
        finally:
            call.cancel()

    async def refusal(self, name: str) -> TritonMQError:
        """What a call of that method ends with, at which nonsense is asked."""
        call = self.call(name)
        try:
            await call.say(b"\xff\xff no protobuf")
            await call.end()
            return await call.error()
        except TritonMQError as error:
            return error
        finally:
            call.cancel()

    async def connect(self) -> Connection:
        return await connect(self.address, self.address, CONNECT_S, self._tls)

    def forget(self, call: Call) -> None:
        self._open.discard(call)

    async def close(self) -> None:
        for call in list(self._open):
            call.cancel()


class Call:
    """One call, spoken by hand. What the broker refuses is raised where it is read."""

    def __init__(self, channel: Channel, opened: pb.CallOpen) -> None:
        self._channel = channel
        self._opened = opened
        service = PEER if opened.HasField("proof") else BROKER
        self._method: Method | None = service.methods.get(opened.method)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._ended = False

    async def write(self, data: bytes) -> None:
        parted = self._method is not None and is_envelope(self._method.request)
        await self.say(*(halves(data) if parted else (data,)))

    async def say(self, body: bytes, payload: Buffer = b"") -> None:
        """The same of a message that need be none."""
        await (await self._connected()).write(body, (payload,) if len(payload) else ())

    async def end(self) -> None:
        """The last that this end says."""
        (await self._connected()).end()

    async def read(self) -> bytes | None:
        """The next answer; None once the broker has said its last."""
        said = await (await self._connected()).read()
        if said is None:
            return None
        if self._method is None or not is_envelope(self._method.response):
            return said.body
        return joined(said.body, (said.payload,))

    async def error(self) -> TritonMQError:
        """What it ends with, whatever is answered before."""
        try:
            async with asyncio.timeout(CONNECT_S):
                while await self.read() is not None:
                    pass
        except TritonMQError as error:
            return error
        raise AssertionError(f"{self._opened.method} ended without an error")

    def cancel(self) -> None:
        self._ended = True
        self._channel.forget(self)
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None:
                assert not self._ended, "it was cancelled"
                self._connection = await self._channel.connect()
                self._connection.open(self._opened)
        return self._connection
