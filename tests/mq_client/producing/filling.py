"""Filling an accumulator by hand, for its tests."""

from __future__ import annotations

import itertools
import random

from mq_client.cluster.connection import TopicView
from mq_client.producing.accumulator import Accumulator, AccumulatorSettings
from mq_client.producing.futures import RecordFuture
from mq_client.producing.lanes import OutgoingBatch
from mq_client.producing.targets import Target
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, decode_batch, schema_fingerprint
from mq_protocol.names import parse_settings


def view(partitions: int = 3) -> TopicView:
    return TopicView(
        "t",
        "id",
        RECORD_SCHEMA,
        schema_fingerprint(RECORD_SCHEMA),
        False,
        parse_settings({}, 1),
        (1,) * partitions,
        (1,) * partitions,
        pb.TopicInfo(),
    )


def accumulator(**options: float) -> Accumulator:
    settings = AccumulatorSettings(
        int(options.get("batch_bytes_max", 1000)),
        options.get("linger_s", 0.005),
        30.0,
        100,
        int(options.get("max_in_flight", 2)),
        None,
    )
    numbers = itertools.count(1)
    return Accumulator(settings, random.Random(1), lambda: next(numbers).to_bytes(16, "big"))


def add(made: Accumulator, target: Target, value: bytes, now: float, partition: int | None = 0) -> RecordFuture:
    future, _ = made.add(target, partition, None, value, None, None, len(value), 0, now)
    return future


def take_all(made: Accumulator, now: float) -> list[tuple[OutgoingBatch, int, bytes]]:
    found = []
    for lane in made.busy():
        while (taken := made.take(lane, now)) is not None:
            found.append(taken)
    return found


def values(batch: OutgoingBatch) -> list[bytes]:
    found: list[bytes] = decode_batch(batch.encoded(), RECORD_SCHEMA).column("value").to_pylist()
    return found


def add_own(made: Accumulator, target: Target, value: bytes, uuid: bytes, partition: int = 0) -> RecordFuture:
    future, _ = made.add(target, partition, None, value, None, None, len(value), 0, 0.0, uuid.ljust(16))
    return future


def own_uuids(batch: OutgoingBatch) -> list[bytes]:
    joined = batch.record_uuids
    return [joined[at : at + 16].rstrip() for at in range(0, len(joined), 16)]
