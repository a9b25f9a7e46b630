"""What was ever written or sent is read, and written again byte for byte; the present bytes change only on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import unknown_fields

from mq_broker.coordination import documents
from mq_broker.coordination import file as coordination_file
from mq_broker.coordination.topics import changed_since
from mq_broker.core.entries import EntryKind
from mq_broker.storage.codec.frame import decode, encode, unpack_header
from mq_broker.storage.codec.snapshot import decode_snapshot, encode_snapshot
from mq_broker.storage.identity import load_identity
from mq_broker.storage.journal.segments import pack_mark, unpack_mark
from mq_broker.storage.opening.directory import DataDirectory
from mq_broker.storage.sealed import BLOCK_BYTES, read_block, snapshot_slot
from mq_protocol import mq_pb2 as pb
from tests.golden import DATA, REGISTRATION, SEALED_FRAME, SEALING, TREE, UNRELEASED, _identity, golden, messages
from tests.mq_broker.storage.bed import PLACE

RELEASES = sorted(path.stem for path in DATA.glob("*.json"))


def kept(release: str, what: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((DATA / f"{release}.json").read_text())[what]
    return found


def _each(what: str) -> Iterator[Any]:
    for release in RELEASES:
        for name in kept(release, what):
            yield pytest.param(release, name, id=f"{release} {name}")


def test_the_bytes_of_this_version_are_as_they_were() -> None:
    before, now = json.loads(UNRELEASED.read_text()), golden()
    changed = [f"{what}: {name}" for what in now for name in now[what] if before[what].get(name) != now[what][name]]
    gone = [f"{what}: {name}" for what in before for name in before[what] if name not in now[what]]
    assert changed + gone == [], "on purpose? `python -m tests.golden`, and say so in COMPATIBILITY.md"


def test_each_kind_of_entry_has_its_bytes() -> None:
    kinds = {unpack_header(memoryview(bytes.fromhex(data)), 0).kind for data in kept("unreleased", "frames").values()}
    assert kinds == set(EntryKind)


@pytest.mark.parametrize(("release", "name"), list(_each("frames")))
def test_a_frame_is_read_and_written_again(release: str, name: str) -> None:
    data = bytes.fromhex(kept(release, "frames")[name])
    entry, payload, end = decode(PLACE, data)
    assert (type(entry.operation).__name__, end) == (name.partition(" ")[2], len(data))
    frame = encode(PLACE, entry, (payload,) if len(payload) else ())
    assert b"".join(bytes(part) for part in frame.parts) == data


@pytest.mark.parametrize("release", RELEASES)
def test_a_snapshot_and_a_mark_are_read_and_written_again(release: str) -> None:
    stored = {name: bytes.fromhex(data) for name, data in kept(release, "stored").items()}
    for snapshot in (data for name, data in stored.items() if name.startswith("snapshot")):
        assert encode_snapshot(PLACE, decode_snapshot(PLACE, snapshot)) == snapshot
    index = unpack_mark(PLACE, stored["flushed"])
    assert index is not None
    assert pack_mark(PLACE, index) == stored["flushed"]


AS_STORED: dict[str, tuple[Callable[[dict[str, Any]], Any], Callable[[Any], dict[str, Any]]]] = {
    "state": (documents.state_from_json, documents.state_to_json),
    "topic": (documents.topic_from_json, documents.topic_to_json),
    "cluster": (documents.cluster_from_json, documents.cluster_to_json),
}


@pytest.mark.parametrize("name", AS_STORED)
@pytest.mark.parametrize("release", RELEASES)
def test_a_document_in_zookeeper_is_read_and_written_again(release: str, name: str) -> None:
    read, write = AS_STORED[name]
    data = kept(release, "documents")[name].encode()
    assert documents.dump(write(documents.load(data, read, name))) == data


@pytest.mark.parametrize("release", RELEASES)
def test_a_registration_and_a_note_of_changes_are_read(release: str) -> None:
    found = kept(release, "documents")
    assert documents.load(found["registration"].encode(), documents.registration_of(3), "x") == REGISTRATION
    assert changed_since(found["topic_changes"].encode(), 6, 4) == ["a", "t", "u"]


@pytest.mark.parametrize("release", RELEASES)
def test_a_data_directory_and_the_file_of_a_lone_broker_are_read_and_written_again(
    release: str, tmp_path: Path
) -> None:
    found = kept(release, "documents")
    (tmp_path / "broker.json").write_text(found["broker.json"])
    directory = DataDirectory.open(tmp_path, 3)
    directory.close()
    assert directory.cluster_id == "c1"
    directory._write_owner()
    assert (tmp_path / "broker.json").read_text() == found["broker.json"]
    (tmp_path / "coordination.json").write_text(found["coordination.json"])
    tree = coordination_file._load(tmp_path)
    assert tree.nodes() == TREE.nodes()
    coordination_file._store(tmp_path, tree, tree.born)
    assert (tmp_path / "coordination.json").read_text() == found["coordination.json"]


def test_what_was_sealed_is_opened() -> None:
    stored = {name: bytes.fromhex(data) for name, data in kept("unreleased", "stored").items()}
    segment = memoryview(stored["segment that is sealed"])
    assert read_block(PLACE, segment[:BLOCK_BYTES]) == SEALING.slot
    frame, end = SEALING.open(1, segment, BLOCK_BYTES)
    assert (b"".join(frame.parts), end) == (b"".join(SEALED_FRAME.parts), len(segment))
    assert snapshot_slot(PLACE, stored["sealed snapshot"]) == SEALING.slot
    assert SEALING.open_snapshot(stored["sealed snapshot"]) == stored["snapshot"]


@pytest.mark.parametrize("name", ["log.json", "log.json with a cut"])
@pytest.mark.parametrize("release", RELEASES)
def test_the_identity_of_a_log_is_read_and_written_again(release: str, name: str, tmp_path: Path) -> None:
    text = kept(release, "documents")[name]
    (tmp_path / "log.json").write_text(text)
    identity = load_identity(tmp_path, PLACE)
    assert identity is not None
    assert _identity(identity) == text


SENT = {"now": messages()} | {each: kept(each, "messages") for each in RELEASES if each != UNRELEASED.stem}


@pytest.mark.parametrize(("release", "name"), [(release, name) for release in SENT for name in SENT[release]])
def test_a_message_is_read_and_written_again(release: str, name: str) -> None:
    data = bytes.fromhex(SENT[release][name])
    message = getattr(pb, name).FromString(data)
    assert len(unknown_fields.UnknownFieldSet(message)) == 0, "a field was taken away or has another number"
    assert message.SerializeToString(deterministic=True) == data
