"""Queue groups as bytes: entries and snapshots come out as they went in, and nothing that contradicts itself does."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable

import google_crc32c
import pytest

from mq_broker.core.entries import Entry, EntryKind, Work
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.work.ranges import RANGES_MAX
from mq_broker.core.work.state import WorkGroups
from mq_broker.core.work.steps import Begin, Lease, Reason
from mq_broker.storage.codec.frame import HEADER_BYTES, NewerFrame, decode, encode
from mq_broker.storage.codec.snapshot import NewerSnapshot, decode_snapshot, encode_snapshot
from mq_broker.storage.codec.work import groups_from_wire, groups_to_wire
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CorruptBatch
from tests.mq_broker.core.work.test_walk import random_step
from tests.mq_broker.storage.bed import PLACE, joined, one_of_each_step, uuid_of


def decoded(meta: bytes) -> object:
    """The operation of a frame with this meta, and a checksum that holds."""
    frame = bytearray(joined([encode(PLACE, Entry(1, 1, 1, Work("g", 1, ())))])[:HEADER_BYTES])
    frame[48:52] = struct.pack("<I", len(meta))
    frame += meta
    frame[:4] = struct.pack("<I", google_crc32c.extend(PLACE.seed, bytes(frame[4:])))
    return decode(PLACE, frame)[0].operation


def work(*steps: pb.WorkStep, group: str = "g", life: int = 1) -> bytes:
    return pb.WorkMeta(group=group, life=life, steps=steps).SerializeToString()


def test_every_step_survives_the_round_trip() -> None:
    entry = Entry(5, 2, 7, Work("jobs", 1 << 40, one_of_each_step()))
    frame = encode(PLACE, entry)
    assert decode(PLACE, joined([frame]))[0] == entry
    assert joined([frame])[6] == EntryKind.WORK == 13


def test_an_entry_of_as_many_ranges_as_are_allowed_takes_two_bytes_a_range() -> None:
    ranges = tuple((3 * n, 3 * n + 1) for n in range(RANGES_MAX))
    frame = encode(PLACE, Entry(1, 1, 1, Work("g", 1, (Lease(ranges, "m"),))))
    assert frame.size < 2 * RANGES_MAX + 200
    assert decode(PLACE, joined([frame]))[0].operation == Work("g", 1, (Lease(ranges, "m"),))


LEASE, ACCEPT = pb.WorkLease(member="m"), pb.WorkAccept()
LINE = pb.OutputLine(topic_id="t", uuids=uuid_of(1))


@pytest.mark.parametrize(
    "meta",
    [
        b"\xff\xff\xff",
        work(group=""),
        work(group="g" * 256),
        work(pb.WorkStep(accept=ACCEPT, ranges=[3])),
        work(pb.WorkStep(accept=ACCEPT, ranges=[3, 0])),
        work(pb.WorkStep(accept=ACCEPT, ranges=[1 << 63, 1 << 63])),
        work(pb.WorkStep(accept=ACCEPT, ranges=[0, 1] * (RANGES_MAX + 1))),
        work(*[pb.WorkStep(accept=ACCEPT, ranges=[0, 1] * (RANGES_MAX // 2))] * 3),
        work(pb.WorkStep(lease=pb.WorkLease(), ranges=[0, 1])),
        work(pb.WorkStep(lease=pb.WorkLease(member="m" * 527), ranges=[0, 1])),
        work(pb.WorkStep(begin=pb.WorkBegin(offset=1 << 63))),
        work(pb.WorkStep(give_back=pb.WorkReturn(due_us=1 << 63), ranges=[0, 1])),
        work(pb.WorkStep(give_back=pb.WorkReturn(error="é" * 129), ranges=[0, 1])),
        work(pb.WorkStep(reject=pb.WorkReject(error="x" * 257), ranges=[0, 1])),
        work(pb.WorkStep(send=pb.WorkSend(reason=1, n=1 << 63))),
        work(pb.WorkStep(send=pb.WorkSend(reason=1, lines=[pb.OutputLine(uuids=b"short")]))),
        work(pb.WorkStep(send=pb.WorkSend(reason=1, lines=[pb.OutputLine(partition=-1)]))),
        work(pb.WorkStep(sent=pb.WorkSent(n=1 << 63))),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused_whole_whatever_its_checksum_says(meta: bytes) -> None:
    with pytest.raises(CorruptBatch, match="cannot be read") as refused:
        decoded(meta)
    assert not isinstance(refused.value, NewerFrame)


@pytest.mark.parametrize(
    "step", [pb.WorkStep(ranges=[0, 1]), pb.WorkStep(drop=pb.WorkDrop(reason=77)), pb.WorkStep(send=pb.WorkSend())]
)
def test_a_step_or_a_reason_of_a_later_version_is_not_taken_for_damage(step: pb.WorkStep) -> None:
    with pytest.raises(NewerFrame, match="this version"):
        decoded(work(step))


def test_bytes_at_random_are_read_or_refused_with_our_errors() -> None:
    rng = random.Random(5)
    whole = work(
        pb.WorkStep(lease=LEASE, ranges=[0, 5, 1, 7]), pb.WorkStep(send=pb.WorkSend(reason=6, n=1, lines=[LINE]))
    )
    for _ in range(500):
        meta = bytearray(whole)
        for _ in range(rng.choice([1, 3])):
            meta[rng.randrange(len(meta))] = rng.randrange(256)
        with contextlib.suppress(CorruptBatch):
            assert isinstance(decoded(bytes(meta[: rng.choice([len(meta), rng.randrange(len(meta))])])), Work)


def walked(seed: int, entries: int = 150) -> WorkGroups:
    """Two groups as a random journal leaves them."""
    rng = random.Random(seed)
    groups = WorkGroups()
    for recovery, group in enumerate(("g", "h")):
        groups.apply(group, 7, [Begin(0, recovery)], 1, 1, (0, 20_000))
        for index in range(2, entries):
            groups.apply(group, 7, [random_step(rng, groups[group], 20_000)], 3, index, (0, 20_000))
    return groups


def snapshot_of(groups: WorkGroups) -> Snapshot:
    return Snapshot(9, 3, 5, MachineState(20_000, work=groups.frozen()))


def test_a_snapshot_has_every_queue_group_as_it_was() -> None:
    for seed in range(3):
        snapshot = snapshot_of(walked(seed))
        data = encode_snapshot(PLACE, snapshot)
        assert decode_snapshot(PLACE, data) == snapshot


def test_a_large_state_is_written_in_small_parts() -> None:
    groups = WorkGroups()
    groups.apply("g", 1, [Begin(0)], 1, 1, (0, 1 << 20))
    singles = tuple((offset, offset + 1) for offset in range(1, 100_000, 2))
    groups.apply("g", 1, [Lease(singles, "m")], 1, 2, (0, 1 << 20))
    parts = [part.SerializeToString() for part in groups_to_wire(groups.frozen())]
    assert max(map(len, parts)) < 64 << 10
    assert groups_from_wire(map(pb.WorkPart.FromString, parts)) == groups.frozen()


def head(**fields: object) -> pb.WorkPart:
    return pb.WorkPart(group="g", life=1, **fields)  # type: ignore[arg-type]


HELD = pb.WorkHeld(leader_epoch=1, entry=1, member="m")


@pytest.mark.parametrize(
    "parts",
    [
        lambda: [pb.WorkPart(life=1)],
        lambda: [head(), head()],
        lambda: [head(base=1 << 63)],
        lambda: [head(full=[0, 0])],
        lambda: [head(), pb.WorkPart(chunks=[1], bits=b"\1")],
        lambda: [head(), pb.WorkPart(chunks=[1], bits=bytes(512))],
        lambda: [head(), pb.WorkPart(chunks=[1 << 63], bits=b"\1" + bytes(511))],
        lambda: [head(frontier=5), pb.WorkPart(lent=[0, 1], lent_by=[0])],
        lambda: [head(frontier=5, members=[HELD]), pb.WorkPart(lent=[0, 1])],
        lambda: [head(frontier=5, members=[HELD])],
        lambda: [head(members=[HELD]), pb.WorkPart(lent=[0, 1], lent_by=[0])],
        lambda: [head(), pb.WorkPart(marked=[0, 1], mark=[0])],
        lambda: [head(base=1), pb.WorkPart(marked=[0, 1], mark=[0], marks=[pb.WorkMark(deliveries=1)])],
        lambda: [head(), pb.WorkPart(outbox=[pb.WorkOutgoing(reason=1, ranges=[1])])],
        lambda: [head(), pb.WorkPart(taken=[pb.WorkTaken(number=1)])],
        lambda: [head(), pb.WorkPart(marks=[pb.WorkMark(error="x" * 257)])],
    ],
)
def test_a_queue_group_in_a_snapshot_that_contradicts_itself_is_refused(parts: Callable[[], list[pb.WorkPart]]) -> None:
    with pytest.raises(CorruptBatch, match="cannot be read"):
        decode_snapshot(PLACE, _snapshot_with(parts()))


def test_a_reason_of_a_later_version_in_a_snapshot_is_not_taken_for_damage() -> None:
    assert 77 not in set(Reason)
    with pytest.raises(NewerSnapshot):
        decode_snapshot(PLACE, _snapshot_with([head(), pb.WorkPart(outbox=[pb.WorkOutgoing(reason=77)])]))


def _snapshot_with(parts: list[pb.WorkPart]) -> bytes:
    messages = [pb.SnapshotState(last_index=5, work_parts=len(parts)), *parts]
    written = [message.SerializeToString() for message in messages]
    body = b"".join(struct.pack("<I", len(part)) + part for part in written)
    checked = struct.pack("<3sBQ", b"TSn", 1, len(body)) + body
    return struct.pack("<I", google_crc32c.extend(PLACE.seed, checked)) + checked
