"""A data directory knows whether it is an older copy of itself, and loses no log's contents when it is."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from mq_broker.storage.codec.frame import Place
from mq_broker.storage.files import OsFiles
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.opening.directory import DataDirectory
from mq_protocol.errors import StorageFailed
from tests.mq_broker.storage.bed import Heard, Killed, MortalFiles, frame_of

PLACES = (Place("id-of-flights", 0), Place("id-of-flights", 11))
OLD = "is an older copy of itself"


def logs(path: Path, broker: int = 7) -> dict[str, int]:
    """Log id and last entry of each place, made where there is none: a whole life, without the cluster's part."""

    async def life() -> dict[str, int]:
        writer = Writer()
        writer.start()
        directory = DataDirectory.open(path, broker)
        found = {}
        for place in PLACES:
            journal = directory.open_journal(place, "fsync", 0, Heard(), writer).journal
            if not journal.last_index:
                journal.append([frame_of(1, place=place)])
            found[journal.log_id] = journal.last_index
            await journal.close()
        directory.close()
        await writer.stop()
        return found

    return asyncio.run(life())


def begin(path: Path, known: int | None, broker: int = 7) -> DataDirectory:
    directory = DataDirectory.open(path, broker)
    directory.join_cluster("c-1", known)
    return directory


def stamped(path: Path, times: int = 1) -> int:
    """The stamp of a directory that was used for a while and stopped cleanly."""
    directory = begin(path, 0)
    stamp = 0
    for _ in range(times):
        stamp = directory.raise_stamp()
    directory.close()
    return stamp


def written(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((path / "broker.json").read_text())
    return found


def test_stamps_grow_for_ever_and_are_on_the_disk_first(tmp_path: Path) -> None:
    assert stamped(tmp_path, times=3) == 3
    assert written(tmp_path) == {"broker": 7, "cluster_id": "c-1", "stamp": 3, "incarnation": 0}
    assert stamped(tmp_path) == 4


@pytest.mark.parametrize("known", [None, 0, 1, 2])
def test_a_directory_that_is_not_behind_is_left_as_it_is(
    tmp_path: Path, known: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The cluster knows the same, or less: it was put back itself, or a crash came between the two."""
    before = logs(tmp_path)
    assert stamped(tmp_path, times=2) == 2
    directory = begin(tmp_path, known)
    assert directory.raise_stamp() == 3
    directory.close()
    assert logs(tmp_path) == before
    assert OLD not in caplog.text


def test_every_log_of_an_older_copy_is_another_one_with_what_it_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = logs(tmp_path / "data")
    stamped(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    known = stamped(tmp_path / "data")
    (tmp_path / "copy" / "partitions" / "lost+found").mkdir()
    directory = begin(tmp_path / "copy", known)
    directory.close()
    assert written(tmp_path / "copy")["stamp"] == known
    (told,) = [each.message for each in caplog.records if OLD in each.message]
    assert "its stamp is 1, and broker 7 had come to 2. Its 2 logs go on under new ids" in told
    after = logs(tmp_path / "copy")
    assert not after.keys() & before.keys()
    assert list(after.values()) == [1, 1]
    begin(tmp_path / "copy", known).close()
    assert logs(tmp_path / "copy") == after, "it is told once"


def test_an_emptied_directory_is_no_older_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begin(tmp_path, 9).close()
    assert OLD not in caplog.text
    assert stamped(tmp_path) == 10, "what it is from now on is newer than what was there"


def test_an_older_copy_is_known_as_one_until_each_of_its_logs_is_another(tmp_path: Path) -> None:
    before = logs(tmp_path / "data")
    stamped(tmp_path / "data")
    for step in range(100):
        copy = tmp_path / f"copy-{step}"
        shutil.copytree(tmp_path / "data", copy)
        files = MortalFiles()
        directory = DataDirectory.open(copy, 7, files)
        files.steps_left = step
        try:
            directory.join_cluster("c-1", 5)
            done = True
        except Killed:
            done = False
        directory.close()
        assert written(copy)["stamp"] in ((5,) if done else (1, 5))
        begin(copy, 5).close()
        assert not logs(copy).keys() & before.keys()
        if done:
            assert step > 2
            return
    raise AssertionError("it never ended")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[7]", b'{"broker": 7}', b'{"broker": 7, "cluster_id": "c-1", "stamp": -1}']
)
def test_a_directory_that_lost_whose_it_is_gets_it_from_the_cluster(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    before = logs(tmp_path)
    known = stamped(tmp_path)
    (tmp_path / "broker.json").write_bytes(content)
    begin(tmp_path, known).close()
    assert written(tmp_path) == {"broker": 7, "cluster_id": "c-1", "stamp": known, "incarnation": 0}
    assert (tmp_path / "broker.json.damaged").read_bytes() == content
    assert "broker.json is damaged" in caplog.text
    after = logs(tmp_path)
    assert not after.keys() & before.keys()
    assert list(after.values()) == [1, 1]


def test_where_nobody_else_knows_whose_a_directory_is_a_person_says_it(tmp_path: Path) -> None:
    before = logs(tmp_path)
    stamped(tmp_path)
    (tmp_path / "broker.json").write_bytes(b"{")
    directory = DataDirectory.open(tmp_path, 7)
    with pytest.raises(StorageFailed, match=r"stands alone.*move that file away and start again"):
        directory.join_cluster("c-1", None)
    directory.close()
    assert (tmp_path / "broker.json").read_bytes() == b"{"
    (tmp_path / "broker.json").unlink()
    begin(tmp_path, None).close()
    assert logs(tmp_path) == before


class Full(OsFiles):
    def replace(self, path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_full_disk_takes_no_stamp_and_an_older_copy_on_it_does_not_begin(tmp_path: Path) -> None:
    before = logs(tmp_path)
    known = stamped(tmp_path)
    directory = DataDirectory.open(tmp_path, 7, Full())
    directory.join_cluster("c-1", known)
    with pytest.raises(StorageFailed, match="takes no stamp"):
        directory.raise_stamp()
    directory.close()
    directory = DataDirectory.open(tmp_path, 7, Full())
    with pytest.raises(StorageFailed, match="free some space"):
        directory.join_cluster("c-1", known + 1)
    directory.close()
    begin(tmp_path, known).close()
    assert logs(tmp_path) == before, "it never began"


def test_the_newest_incarnation_goes_with_the_stamp(tmp_path: Path) -> None:
    directory = begin(tmp_path, 0)
    directory.incarnation = 12
    directory.raise_stamp()
    directory.close()
    again = begin(tmp_path, 0)
    assert again.incarnation == 12
    again.close()
