"""The bytes of every format that is stored or sent, made from values that never change.

    python -m tests.golden              writes those that are stored into tests/data/unreleased.json
    python -m tests.golden RELEASE      writes them into a file of that name, and every message that is sent

Run the first only if a format was changed on purpose, and say so in COMPATIBILITY.md. The second is a part of a
release, and its file stays as it is: what was released is read for ever.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from mq_broker.coordination import documents
from mq_broker.coordination import file as coordination_file
from mq_broker.coordination.interface import BrokerRegistration, ClusterSpec, Move, TopicSpec
from mq_broker.coordination.store import Kept, Tree
from mq_broker.coordination.topics import with_changes
from mq_broker.core.entries import (
    SCHEDULED,
    Append,
    Attributes,
    Carry,
    Entry,
    Schedule,
    Stage,
    TransactionKey,
)
from mq_broker.core.machine.state import Cursor, MachineState, Snapshot, StagedBatch, TransactionState
from mq_broker.core.machine.window import Placed, SeenUuids
from mq_broker.core.messages import LeaderName, NodeState
from mq_broker.core.work.state import FrozenWork, WorkGroups
from mq_broker.storage.aes_gcm import AesGcm
from mq_broker.storage.codec.frame import encode
from mq_broker.storage.codec.snapshot import encode_snapshot
from mq_broker.storage.identity import Cut, LogIdentity
from mq_broker.storage.journal.segments import pack_mark
from mq_broker.storage.opening.directory import DataDirectory
from mq_broker.storage.sealed import OVERHEAD_BYTES, DataKey, Slot
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart
from tests.mq_broker.storage.bed import (
    KEY,
    PLACE,
    joined,
    one_of_each_operation,
    one_of_each_step,
    operations_with_attributes,
    operations_with_owners,
    uuid_of,
)

DATA: Final = Path(__file__).parent / "data"
UNRELEASED: Final = DATA / "unreleased.json"

PAYLOAD: Final = bytes(range(64))

SEALING: Final = DataKey(PLACE, Slot("default-1", bytes(range(60)), 3), AesGcm(bytes(range(32))))
SEALED_FRAME: Final = encode(PLACE, Entry(1, 1, 1_000_001, Append(), uuid_of(1), 2, 64, 128), (PAYLOAD,))

DECIDED: Final = TransactionState(
    12, "run-1", 3, (StagedPart("t", 2, (uuid_of(9),), 3, "id"),), False, ("run-0",), changed_us=7
)
SNAPSHOT: Final = Snapshot(
    40,
    3,
    1_700_000_000_000_000,
    MachineState(
        100,
        7,
        SeenUuids.of([(uuid_of(n), Placed(n, n - 1, 1_000_000 + n)) for n in range(1, 6)]),
        (StagedBatch(uuid_of(9), KEY, 12, "run-1", 3, 39, 1_000_039, 64, 128),),
        ((KEY, 11),),
        (("audit", Cursor(77, "spark", 5)), ("g", Cursor(3, "ephemeral", 6))),
        (
            (
                KEY,
                TransactionState(
                    12, "run-1", 3, (StagedPart("t", 2, (uuid_of(9),), 3, "id"),), False, ("run-0",), changed_us=7
                ),
            ),
        ),
        (TransactionKey("dead", ""),),
    ),
)
IDENTITY: Final = LogIdentity("log-1", "boot-1", True, "os", PLACE.topic_id, PLACE.partition, "flights", 2)
STATE: Final = NodeState(LeaderName(1, 7), 3, ((1, "a"), (2, "b")), 1, "1.7.9", 5)
TOPIC: Final = TopicSpec(
    "t", "0" * 32, ((1, 2), (2, 1, 3)), b"schema", {"durability": "os"}, {1: Move((2, 3), (2, 1))}, (1,)
)
CLUSTER: Final = ClusterSpec("c" * 32, 2)
TREE: Final = Tree(
    {
        "brokers/lives/1": Kept(b"", 7, 5),
        "topics/t": Kept(documents.dump(documents.topic_to_json(TOPIC)), 4, 12),
        f"states/{TOPIC.topic_id}/1": Kept(documents.dump(documents.state_to_json(STATE)), 9, 11),
    }
)
"""Some of what a broker that stands alone keeps of its cluster."""

REGISTRATION: Final = BrokerRegistration(3, 17, "h:1", "rack", "h:2", 1 << 20)


def golden() -> dict[str, dict[str, str]]:
    """By format and name: hexadecimal digits, or text as it is stored."""
    return {"frames": frames(), "stored": stored(), "documents": documents_as_stored()}


def frames() -> dict[str, str]:
    """One of each kind of entry."""
    made = {}
    every = (*one_of_each_operation(), *operations_with_attributes(), *operations_with_owners())
    for index, operation in enumerate(every, start=1):
        carries = isinstance(operation, Append | Stage | Schedule | Carry)
        records = len(operation.uuids()) if isinstance(operation, Append) and operation.record_uuids else int(carries)
        payload = PAYLOAD if carries else b""
        entry = Entry(
            index,
            2,
            1_000_000 + index,
            operation,
            uuid_of(index) if carries else bytes(16),
            records,
            len(payload),
            2 * len(payload),
        )
        made[f"{index:02d} {type(operation).__name__}"] = joined(
            [encode(PLACE, entry, (payload,) if payload else ())]
        ).hex()
    return made


def stored() -> dict[str, str]:
    """Other bytes in a partition's directory."""
    queues = replace(SNAPSHOT, state=replace(SNAPSHOT.state, work=(("jobs", queue_group()),)))
    waits = StagedBatch(uuid_of(8), SCHEDULED, 0, "", 3, 38, 1_000_038, 64, 128, 1_700_000_000_000_000)
    scheduled = replace(SNAPSHOT, state=replace(SNAPSHOT.state, staged=(waits,)))
    attributed = replace(SNAPSHOT.state.staged[0], attributes=Attributes(9))
    owned = replace(SNAPSHOT.state.staged[0], owner="User:etl")
    staged_by_somebody = replace(SNAPSHOT, state=replace(SNAPSHOT.state, staged=(owned,)))
    (first_key, first), *others = SNAPSHOT.state.transactions
    transactions = ((first_key, replace(first, owner="User:etl")), *others)
    decided_by_somebody = replace(SNAPSHOT, state=replace(SNAPSHOT.state, transactions=transactions))
    (group, cursor), *more = SNAPSHOT.state.cursors
    cursors = ((group, replace(cursor, owner="User:etl")), *more)
    moved_by_somebody = replace(SNAPSHOT, state=replace(SNAPSHOT.state, cursors=cursors))
    levels = replace(SNAPSHOT, state=replace(SNAPSHOT.state, staged=(attributed,)))
    lives = replace(scheduled.state.staged[0], attributes=Attributes(ttl_ms=600_000))
    expires = replace(SNAPSHOT, state=replace(SNAPSHOT.state, staged=(lives,)))
    return {
        "snapshot": encode_snapshot(PLACE, SNAPSHOT).hex(),
        "snapshot with a queue group": encode_snapshot(PLACE, queues).hex(),
        "snapshot with a scheduled batch": encode_snapshot(PLACE, scheduled).hex(),
        "snapshot with attributes": encode_snapshot(PLACE, levels).hex(),
        "snapshot with an owner of staged batches": encode_snapshot(PLACE, staged_by_somebody).hex(),
        "snapshot with an owner of a key": encode_snapshot(PLACE, decided_by_somebody).hex(),
        "snapshot with an owner of a cursor": encode_snapshot(PLACE, moved_by_somebody).hex(),
        "snapshot with a time to live": encode_snapshot(PLACE, expires).hex(),
        "flushed": pack_mark(PLACE, 40).hex(),
        **_sealed(),
    }


def _sealed() -> dict[str, str]:
    """A sealed segment of one entry, and a sealed snapshot. Their nonces are not random here."""
    nonce = bytes(range(12))
    with mock.patch("os.urandom", lambda size: nonce[:size]):
        unit = bytearray(SEALED_FRAME.size + OVERHEAD_BYTES)
        SEALING.seal(1, SEALED_FRAME, memoryview(unit))
        segment = SEALING.block + unit
        return {
            "segment that is sealed": segment.hex(),
            "sealed snapshot": SEALING.seal_snapshot(encode_snapshot(PLACE, SNAPSHOT)).hex(),
        }


def queue_group() -> FrozenWork:
    """What one of each step comes to, but for the end of the group."""
    groups = WorkGroups()
    groups.apply("jobs", 3, one_of_each_step()[:-1], 2, 17, (0, 10_000))
    return groups["jobs"].frozen()


class _Kept:
    """What is stored, in place of a disk."""

    def __init__(self) -> None:
        self.data = b""

    def replace(self, _path: Path, data: bytes) -> None:
        self.data = data


def _identity(identity: LogIdentity) -> str:
    kept: Any = _Kept()
    identity.store(Path(), kept)
    text: str = kept.data.decode()
    return text


def documents_as_stored() -> dict[str, str]:
    """JSON and text, of ZooKeeper and of a partition's directory."""
    cut = LogIdentity(**{**_fields(IDENTITY), "cut": Cut(1, 200, 4, "aside-1", "torn")})
    return {
        "log.json": _identity(IDENTITY),
        "log.json with a cut": _identity(cut),
        "state": documents.dump(documents.state_to_json(STATE)).decode(),
        "topic": documents.dump(documents.topic_to_json(TOPIC)).decode(),
        "topic with an owner": documents.dump(documents.topic_to_json(replace(TOPIC, owner="User:etl"))).decode(),
        "registration": documents.dump(documents.registration_to_json(REGISTRATION)).decode(),
        "broker.json": _broker_json(),
        "coordination.json": _coordination_json(),
        "cluster": documents.dump(documents.cluster_to_json(CLUSTER)).decode(),
        "topic_changes": with_changes(with_changes(b"", 4, ["a"]), 5, ["t", "u"]).decode(),
    }


def _broker_json() -> str:
    with tempfile.TemporaryDirectory() as name:
        directory = DataDirectory.open(Path(name), 3)
        directory.join_cluster("c1")
        directory.close()
        return (Path(name) / "broker.json").read_text()


def _coordination_json() -> str:
    with tempfile.TemporaryDirectory() as name:
        coordination_file._store(Path(name), TREE, 1_017)
        return (Path(name) / "coordination.json").read_text()


def _fields(identity: LogIdentity) -> dict[str, Any]:
    return {name: getattr(identity, name) for name in identity.__dataclass_fields__}


def messages() -> dict[str, str]:
    """Every message of mq.proto, with something in each field."""
    made = {}
    for name in sorted(pb.DESCRIPTOR.message_types_by_name):
        made[name] = filled(getattr(pb, name)).SerializeToString(deterministic=True).hex()
    return made


def filled(kind: Any, depth: int = 3) -> Any:
    """A message with a value of its own in each field; of a `oneof` the last one stays."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        _fill(message, field, depth)
    return message


def _fill(message: Any, field: FieldDescriptor, depth: int) -> None:
    into = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_value(each, number) for each, number in zip(field.message_type.fields, (1, 2), strict=True))
        into[key] = value
    elif field.message_type is not None:
        if depth:
            (into.add() if field.is_repeated else into).CopyFrom(filled(_class(field.message_type), depth - 1))
    elif field.is_repeated:
        into.extend(_value(field, number) for number in (0, 1))
    else:
        setattr(message, field.name, _value(field, 0))


def _class(descriptor: Descriptor) -> Any:
    return getattr(pb, descriptor.name)


def _value(field: FieldDescriptor, step: int) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            text = f"{field.name} {step} ö"
            return text if field.type == FieldDescriptor.TYPE_STRING else text.encode()
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_ENUM:
            return field.enum_type.values[min(1, len(field.enum_type.values) - 1)].number
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_INT64:
            return -(field.number * 1_000 + step)
        case _:
            return field.number * 1_000 + step


def main() -> None:
    for path in (UNRELEASED, *(DATA / f"{release}.json" for release in sys.argv[1:])):
        made = golden() if path == UNRELEASED else golden() | {"messages": messages()}
        path.write_text(json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
