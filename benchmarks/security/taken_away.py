"""How long a right that was taken away still lasts, at a broker that was not asked: what is open there ends."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Final

import grpc

from benchmarks.bench.measure import percentile
from benchmarks.security.ground import Ground, Row
from mq_client import AclRule, Admin, Security
from mq_client.cluster import credentials
from mq_dev.certificates import Authority, authority_key, write_client
from mq_protocol import mq_pb2 as pb
from mq_protocol.methods import BROKER

TOPIC: Final = "taken"
USER: Final = "User:taken"
WITHIN_S: Final = 2.0


def measured(ground: Ground, tries: int) -> list[Row]:
    assert ground.certs is not None
    write_client(Authority.open(ground.certs, authority_key(ground.certs)), ground.certs, "taken")
    shown = credentials.current(Security(ground.certs, "taken")).channel
    cluster = ground.cluster
    took = []
    with Admin(cluster.bootstrap, security=cluster.security) as admin:
        admin.create_topic(TOPIC, partitions=1, replicas=len(cluster.brokers))
        asked = cluster.brokers[1].address
        away = next(broker.address for number, broker in cluster.brokers.items() if number != 1)
        with (
            Admin(asked, security=cluster.security) as first,
            grpc.secure_channel(away, shown) as channel,
        ):
            watch: Any = channel.unary_stream(BROKER.path("WatchOffsets"))
            request = pb.WatchOffsetsRequest(partitions=[pb.TopicPartition(topic=TOPIC)]).SerializeToString()
            rule = AclRule(USER, "Describe", "Topic", TOPIC)
            for _ in range(tries):
                first.alter_acls(add=[rule])
                ended = _Ended(_opened(watch, request))
                begun = time.perf_counter()
                first.alter_acls(remove=[rule])
                took.append(ended.at() - begun)
    p99 = percentile(took, 99)
    told = f"p99 {p99:.2f} s, longest {max(took):.2f} s, of {len(took)} tries"
    return [Row("a right taken away, at another broker", told, f"≤ {WITHIN_S:.0f} s", p99 <= WITHIN_S)]


class _Ended:
    """Reads a stream to its end in a thread, and notes when that was."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._at = 0.0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass
        self._at = time.perf_counter()

    def at(self) -> float:
        self._thread.join(60)
        assert self._at, "the stream has not ended"
        return self._at


def _opened(watch: Any, request: bytes) -> Any:
    """The stream, once it is allowed."""
    deadline = time.monotonic() + 30
    while True:
        call = watch(request)
        try:
            next(call)
        except grpc.RpcError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        return call
