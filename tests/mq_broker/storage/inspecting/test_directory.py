"""Whose data directory it is, that no broker runs in it, and which partitions are there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mq_broker.storage.codec.frame import Place
from mq_broker.storage.files import OsFiles
from mq_broker.storage.inspecting.directory import look_into
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.opening.directory import DataDirectory
from mq_protocol.errors import InvalidSetting, StorageFailed
from tests.mq_broker.storage.bed import Heard

PLACES = [(Place("a" * 32, 0), "flights"), (Place("b" * 32, 0), "flights"), (Place("b" * 32, 1), "flights")]


def made(path: Path) -> None:
    """A stopped broker's directory: the topic flights of two lives."""

    async def scene() -> None:
        directory = DataDirectory.open(path, 4)
        directory.join_cluster("c1")
        writer = Writer(OsFiles())
        writer.start()
        for place, topic in PLACES:
            opened = directory.open_journal(place, "fsync", 0, Heard(), writer, topic=topic)
            await opened.journal.close()
        await writer.stop()
        directory.close()

    asyncio.run(scene())


def test_a_directory_says_whose_it_is_and_what_it_holds(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "partitions" / "x-1.deleted").mkdir()
    with look_into(tmp_path) as found:
        assert (found.broker, found.cluster_id, found.wrong, found.locked) == (4, "c1", "", True)
        assert [(each.place, each.topic()) for each in found.partitions] == PLACES
        assert found.strangers == ("x-1.deleted",)
        assert found.find("b" * 32, 0).place == PLACES[1][0]
        assert found.find("flights", 1).place == PLACES[2][0]
        with pytest.raises(StorageFailed, match=f"several times.*{'a' * 32}, {'b' * 32}"):
            found.find("flights", 0)
        with pytest.raises(StorageFailed, match="storage list"):
            found.find("flihgts", 0)


def test_a_directory_in_which_a_broker_runs_is_not_looked_into_nor_the_other_way_round(tmp_path: Path) -> None:
    made(tmp_path)
    running = DataDirectory.open(tmp_path, 4)
    with (
        pytest.raises(InvalidSetting, match=r"in use by a broker \(pid [0-9]+\): stop that broker"),
        look_into(tmp_path),
    ):
        pass
    (tmp_path / "broker.pid").write_text("")  # as a full disk leaves it
    with pytest.raises(InvalidSetting, match=r"in use by a broker \(pid unknown\)"), look_into(tmp_path):
        pass
    running.close()
    with look_into(tmp_path), look_into(tmp_path), pytest.raises(InvalidSetting, match="in use"):
        DataDirectory.open(tmp_path, 4)
    DataDirectory.open(tmp_path, 4).close()


def test_a_copy_without_a_lock_can_be_looked_into(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "broker.lock").unlink()
    with look_into(tmp_path) as found:
        assert not found.locked
    assert not (tmp_path / "broker.lock").exists()


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="no folder `partitions`"), look_into(tmp_path):
        pass


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"[" * 100_000, b'{"broker": "4", "cluster_id": ""}', b"\xff", b"1" * (2 << 20)]
)
def test_a_broker_json_that_cannot_be_believed_is_told(tmp_path: Path, content: bytes) -> None:
    made(tmp_path)
    (tmp_path / "broker.json").write_bytes(content)
    with look_into(tmp_path) as found:
        assert "broker.json" in found.wrong
        assert found.broker is None


def test_quarantine_is_listed_with_its_reason(tmp_path: Path) -> None:
    made(tmp_path)
    path = tmp_path / "partitions" / f"{'a' * 32}-0"
    for number in (2, 10):
        (path / f"aside-{number}").mkdir()
        (path / f"aside-{number}" / "00000000000000000001.log").write_bytes(bytes(number))
    (path / "aside-2" / "why.txt").write_text("bad at byte 7\n")
    with look_into(tmp_path) as found:
        asides = found.partitions[0].asides
    assert [(each.path.name, each.size) for each in asides] == [("aside-2", 2), ("aside-10", 10)]
    assert asides[0].why == "bad at byte 7\n"
    assert "cannot be read" in asides[1].why


def test_names_that_storage_does_not_give_are_no_partitions(tmp_path: Path) -> None:
    made(tmp_path)
    strange = ["x-4294967296", "x-01", "x", "..x-1", "x-1\n"]
    for name in strange:
        (tmp_path / "partitions" / name).mkdir()
    (tmp_path / "partitions" / "file-1").write_text("")
    with look_into(tmp_path) as found:
        assert [each.place for each in found.partitions] == [place for place, _ in PLACES]
        assert found.strangers == tuple(sorted([*strange, "file-1"]))
