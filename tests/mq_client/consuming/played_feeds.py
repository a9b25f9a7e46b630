"""Consumers that are fed together, whose brokers and loop the test plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mq_client.cluster import loop as loop_module
from mq_client.cluster.client import Client as Caller
from mq_client.consuming import feeds as feeds_module
from mq_client.consuming import subscription
from mq_protocol.sql.ddl import parse_schema
from tests.mq_client.cluster.scripted import topic_info
from tests.mq_client.consuming.played_subscription import Client, Stream


class Later:
    def __init__(self, at: float, function: Callable[[], Any]) -> None:
        self.at = at
        self.function = function
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """Calls at once, and what is for later when `passes` says so."""

    def __init__(self) -> None:
        self.time = 100.0
        self.timers: list[Later] = []

    def later(self, seconds: float, function: Callable[[], Any]) -> Later:
        self.timers.append(Later(self.time + seconds, function))
        return self.timers[-1]

    def passes(self, seconds: float) -> None:
        self.time += seconds
        due = [timer for timer in self.timers if timer.at <= self.time]
        self.timers = [timer for timer in self.timers if timer.at > self.time]
        for timer in due:
            if not timer.is_cancelled:
                timer.function()

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        function(*arguments)

    def now(self) -> float:
        return self.time


class World:
    """Owns consumers of topic `t`, their own streams, and those for all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.loop = Loop()
        self.own: list[Stream] = []
        self.shared: list[Stream] = []
        monkeypatch.setattr(loop_module, "on_loop", lambda: True)
        monkeypatch.setattr(loop_module, "this_process", lambda: self.loop)
        monkeypatch.setattr(feeds_module, "PushStream", self._opener(self.shared))
        monkeypatch.setattr(feeds_module, "APART_S", 0.0)

    @staticmethod
    def _opener(streams: list[Stream]) -> Callable[..., Stream]:
        def opened(address: str, heard: Any, over: Any, _: Caller) -> Stream:
            stream = Stream(address, heard, over)
            streams.append(stream)
            return stream

        return opened

    def client(
        self, group: str = "", *, credit_bytes: int = 1 << 20, columns: str = "", topic_id: str = "", **options: Any
    ) -> Client:
        made = Client(self._monkeypatch, group, **options)
        self._monkeypatch.setattr(subscription, "PushStream", self._opener(self.own))
        made.subscriptions.credit_bytes = credit_bytes
        if columns:
            made.say(topic_info(1, 2, schema=parse_schema(columns)))
        if topic_id:
            made.say(topic_info(1, 2, topic_id=topic_id))
        made.subscribe("t")
        return made

    def stream(self, client: Client, broker: int = 1) -> Stream:
        """That consumer's own, the newest."""
        return [
            stream
            for stream in self.own
            if stream.heard.__self__._subscriptions is client.subscriptions and stream.address == f"b:{broker}"
        ][-1]

    def two(self, credit_bytes: int = 1 << 20) -> tuple[Client, Client]:
        """At the same place of partition 0, each by itself; a stream for both was asked for. The first holds no more
        than that."""
        first, second = self.client(credit_bytes=credit_bytes), self.client()
        first.opened(self.stream(first), 0, 5)
        assert not self.shared, "one alone needs none"
        second.opened(self.stream(second), 0, 5)
        return first, second

    def met(self, credit_bytes: int = 1 << 20) -> tuple[Client, Client, Stream]:
        """Both are fed by the stream for all."""
        first, second = self.two(credit_bytes)
        [stream] = self.shared
        first.opened(stream, 0, 5)
        assert first.place().fed
        assert second.place().fed
        return first, second, stream


def opens(stream: Stream) -> list[tuple[int, int]]:
    return [(place.partition, place.offset) for opened in stream.take("open") for place in opened.partitions]


def closes(stream: Stream) -> list[int]:
    return [place.partition for closed in stream.take("close") for place in closed.partitions]
