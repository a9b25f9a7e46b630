"""A broker's data directory: one process, one broker, one cluster."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.files import OsFiles
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.opening.directory import DataDirectory
from mq_protocol.errors import InvalidSetting, StorageFailed
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import DEADLINE_S, PLACE, Bed, Heard, frame_of, frames_of

HOLDER = """
import sys, time
from pathlib import Path
from mq_broker.storage.opening.directory import DataDirectory
directory = DataDirectory.open(Path(sys.argv[1]), 1)
print("open", flush=True)
sys.stdin.read()
"""


def test_a_directory_is_made_and_taken_up_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    directory = DataDirectory.open(path, 7)
    assert (directory.broker, directory.cluster_id) == (7, "")
    assert (path / "broker.pid").read_text() == f"{os.getpid()}\n"
    directory.join_cluster("c-1")
    directory.close()
    assert not (path / "broker.pid").exists()
    again = DataDirectory.open(path, 7)
    assert again.cluster_id == "c-1"
    again.join_cluster("c-1")
    again.close()
    assert json.loads((path / "broker.json").read_text()) == {"broker": 7, "cluster_id": "c-1"}


def test_another_brokers_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path, 7).close()
    before = (tmp_path / "broker.json").read_bytes()
    with pytest.raises(InvalidSetting, match="belongs to broker 7, not 8: start it with --id 7"):
        DataDirectory.open(tmp_path, 8)
    assert (tmp_path / "broker.json").read_bytes() == before
    assert not (tmp_path / "broker.pid").exists()
    DataDirectory.open(tmp_path, 7).close()  # the refusal let the lock go


def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path, 7)
    directory.join_cluster("c-1")
    with pytest.raises(InvalidSetting, match="belongs to cluster c-1, not c-2"):
        directory.join_cluster("c-2")
    directory.close()


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(InvalidSetting, match=rf"in use by another process \(pid {holder.pid}\)"):
            DataDirectory.open(tmp_path, 1)
        holder.kill()  # a lock goes with its process, its pid file does not
    assert (tmp_path / "broker.pid").exists()
    DataDirectory.open(tmp_path, 1).close()


class Full(OsFiles):
    def replace(self, path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def pid_fails(call: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """When `broker.pid` is opened, or written."""
    real = os.open

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    def opened(path: Path, *args: int, **more: int) -> int:
        return fail() if call == "open" and path.name == "broker.pid" else real(path, *args, **more)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "write", fail)


@pytest.mark.parametrize(("call", "code"), [("open", errno.ENOSPC), ("write", errno.ENOSPC), ("write", errno.EDQUOT)])
@pytest.mark.parametrize("cleanly", [True, False])
def test_a_directory_that_was_used_before_is_opened_on_a_full_disk(
    call: str,
    code: int,
    cleanly: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = DataDirectory.open(tmp_path, 7)
    directory.join_cluster("c-1")
    directory.close()
    if not cleanly:
        (tmp_path / "broker.pid").write_text("4711\n")
    with monkeypatch.context() as full:
        pid_fails(call, code, full)
        again = DataDirectory.open(tmp_path, 7, Full())
        again.join_cluster("c-1")
        with pytest.raises(InvalidSetting, match="in use by another process"):
            DataDirectory.open(tmp_path, 7)
    assert "broker.pid cannot hold the process id" in caplog.text
    assert "free some space there" in caplog.text
    again.close()


def test_a_directory_on_a_disk_that_fails_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DataDirectory.open(tmp_path, 7).close()
    with monkeypatch.context() as failing:
        pid_fails("write", errno.EIO, failing)
        with pytest.raises(StorageFailed, match="give --data a directory that can be written"):
            DataDirectory.open(tmp_path, 7)
    DataDirectory.open(tmp_path, 7).close()


def held(directory: DataDirectory) -> list[str]:
    return sorted(path.name for path in (directory.path / "partitions").iterdir())


@real_time
async def test_journals_are_opened_and_deleted(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        directory = DataDirectory.open(tmp_path / "data", 1)
        assert held(directory) == []
        for durability in ("fsync", "os", "memory"):
            place = Place(f"id-of-{durability}", 11)
            heard = Heard()
            opened = directory.open_journal(place, durability, 1 << 20, heard, bed.writer, topic="flights")
            journal = opened.journal
            assert opened.recovered.entries == ()
            journal.append([frame_of(1, place=place)])
            await heard.until_flushed(1)
            index = directory.open_index(place, durability)
            index.close()
            await journal.close()
        assert held(directory) == ["id-of-fsync-11", "id-of-os-11"]
        log = json.loads((tmp_path / "data" / "partitions" / "id-of-os-11" / "log.json").read_text())
        assert (log["topic"], log["durability"], log["clean"]) == ("flights", "os", True)
        directory.delete_partition(Place("id-of-os", 11))
        directory.delete_partition(Place("id-of-os", 11))
        assert held(directory) == ["id-of-fsync-11"]
        with pytest.raises(InvalidSetting, match="durability=disk: there are fsync, os, memory"):
            directory.open_journal(Place("a", 0), "disk", 1, Heard(), bed.writer)
        directory.close()


def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start_or_the_next_deletion(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path, 1).close()
    (tmp_path / "partitions" / "a-1.deleted" / "deep").mkdir(parents=True)
    directory = DataDirectory.open(tmp_path, 1)
    assert list((tmp_path / "partitions").iterdir()) == []
    path = directory.partition_path(PLACE)
    for each in (path, path.with_name(path.name + ".deleted")):  # the replica has come back meanwhile
        (each / "aside-1").mkdir(parents=True)
    directory.delete_partition(PLACE)
    assert list((tmp_path / "partitions").iterdir()) == []
    directory.close()


@real_time
async def test_the_lock_is_held_for_as_long_as_a_journal_is_being_opened(tmp_path: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()

    class SlowFiles(OsFiles):
        def sync_directory(self, path: Path) -> None:
            reached.set()
            assert go_on.wait(DEADLINE_S)
            super().sync_directory(path)

    directory = DataDirectory.open(tmp_path, 1)
    writer = Writer(SlowFiles())
    opening = asyncio.create_task(asyncio.to_thread(directory.open_journal, PLACE, "fsync", 0, Heard(), writer))
    assert await asyncio.to_thread(reached.wait, DEADLINE_S)
    directory.close()  # the broker has stopped; the thread has not, and may cut what the next process appends
    with pytest.raises(InvalidSetting, match="in use by another process"):
        DataDirectory.open(tmp_path, 1)
    go_on.set()
    await opening
    DataDirectory.open(tmp_path, 1).close()


@pytest.mark.parametrize("topic_id", ["../../x", "..", "/tmp/x", "a/b", "a\x00b", "x" * 200, "a.deleted"])
@real_time
async def test_a_place_outside_the_directory_is_neither_read_nor_written_nor_removed(
    tmp_path: Path, topic_id: str
) -> None:
    outside = tmp_path / "x-0"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    directory = DataDirectory.open(tmp_path / "data" / "broker", 1)
    before = sorted(tmp_path.rglob("*"))  # noqa: ASYNC240 - nothing else runs
    place, writer = Place(topic_id, 0), Writer()
    acts: list[Callable[[], object]] = [
        lambda: directory.open_journal(place, "fsync", 0, Heard(), writer),
        lambda: directory.delete_partition(place),
        lambda: directory.install(place, "fsync", "t", Snapshot(0, 0, 0, MachineState()), 0),
        lambda: directory.start_over(place, "fsync", "t", 0),
        lambda: directory.open_index(place, "fsync"),
    ]
    for act in acts:
        with pytest.raises(StorageFailed, match="is no partition's directory"):
            act()
    assert sorted(tmp_path.rglob("*")) == before  # noqa: ASYNC240
    assert (outside / "precious").read_text() == "kept"
    directory.close()


def test_a_directory_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path, 7).close()
    written = json.dumps({**json.loads((tmp_path / "broker.json").read_text()), "format": 2})
    (tmp_path / "broker.json").write_text(written)
    with pytest.raises(
        StorageFailed, match="is of format 2, and this version reads format 1: nothing of it was changed"
    ):
        DataDirectory.open(tmp_path, 7)
    assert (tmp_path / "broker.json").read_text() == written


@real_time
async def test_the_lock_is_held_for_as_long_as_a_journal_is_being_shortened(tmp_path: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()

    class SlowFiles(OsFiles):
        def replace(self, path: Path, data: bytes) -> None:
            if path.name == "snapshot":
                reached.set()
                assert go_on.wait(DEADLINE_S)
            super().replace(path, data)

    async with Bed(tmp_path) as bed:
        directory = DataDirectory.open(tmp_path / "data", 1)
        bed.writer.files = SlowFiles()
        heard = Heard()
        journal = directory.open_journal(PLACE, "fsync", 300, heard, bed.writer).journal
        journal.append(frames_of(1, 9))
        await heard.until_flushed(9)
        shortening = asyncio.create_task(journal.shorten_to(7, WindowBounds(100)))
        assert await asyncio.to_thread(reached.wait, DEADLINE_S)
        directory.close()  # the thread that is still at work would put its snapshot over a later one
        with pytest.raises(InvalidSetting, match="in use by another process"):
            DataDirectory.open(tmp_path / "data", 1)
        go_on.set()
        assert await shortening == 7
        await journal.close()
        directory = DataDirectory.open(tmp_path / "data", 1)
        opened = directory.open_journal(PLACE, "fsync", 300, heard, bed.writer)
        assert (opened.journal.first_index, opened.journal.last_index, opened.damaged) == (7, 9, "")
        await opened.journal.close()
        directory.close()
