"""`tritonmq keys`, and `tritonmq storage` over what is sealed."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_broker.storage.files import OsFiles
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.key_file import read_key_file
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.opening.directory import DataDirectory
from mq_broker.storage.opening.rewrapping import rewrap, sealed_files
from mq_broker.storage.sealed import BLOCK_BYTES, SLOT_BYTES, KeyAbsent
from mq_cli.main import run
from tests.mq_broker.storage.bed import PLACE, Heard, frames_of

Told = Callable[[], tuple[str, str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    def told() -> tuple[str, str]:
        captured = capsys.readouterr()
        return captured.out, captured.err

    return told


@pytest.fixture
def ref(tmp_path: Path, told: Told) -> str:
    reference = f"file:{tmp_path / 'keys.json'}"
    assert run(["keys", "create", "--encrypt", reference]) == 0
    told()
    return reference


def journal(data: Path, ref: str, first: int, last: int, key: str = "") -> int:
    """Write these entries; how many there are."""

    async def scene() -> int:
        directory = DataDirectory.open(data, 1, keys=Keyring(ref) if ref else None)
        writer = Writer(OsFiles())
        writer.start()
        heard = Heard()
        try:
            opened = directory.open_journal(PLACE, "fsync", 0, heard, writer, topic="flights", key=key)
            opened.journal.append(frames_of(first, last))
            if last >= first:
                await heard.until_flushed(last)
            await opened.journal.close()
            return opened.journal.last_index
        finally:
            await writer.stop()
            directory.close()

    return asyncio.run(scene())


def newest(ref: str, name: str = "default") -> str:
    return read_key_file(Path(ref.removeprefix("file:"))).current[name]


def test_a_key_file_is_for_its_owner_alone_and_every_key_has_an_id_of_its_own(ref: str, told: Told) -> None:
    path = Path(ref.removeprefix("file:"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert run(["keys", "create", "--encrypt", ref]) == 1
    assert "`tritonmq keys rotate` makes a newer one" in told()[1]
    assert run(["keys", "rotate", "--encrypt", ref]) == 0
    assert run(["keys", "rotate", "orders", "--encrypt", ref]) == 1
    assert run(["keys", "create", "../x", "--encrypt", ref]) == 1
    assert run(["keys", "create", "--encrypt", "vault:x"]) == 2
    content = read_key_file(path)
    assert len(content.keys) == 2
    assert newest(ref) in content.keys
    path.chmod(0o640)
    told()
    assert run(["keys", "list", "--encrypt", ref]) == 1
    assert "chmod 600" in told()[1]


def test_a_key_is_rotated_rewrapped_and_retired_without_a_record_written_again(
    ref: str, tmp_path: Path, told: Told
) -> None:
    data, first = tmp_path / "data", newest(ref)
    journal(data, ref, 1, 3)
    run(["keys", "rotate", "--encrypt", ref])
    second = newest(ref)
    assert journal(data, ref, 4, 5) == 5  # in a segment of its own, with the newer key
    told()
    assert run(["keys", "list", "--encrypt", ref, "--data", str(data), "--json"]) == 0
    assert {row["key"]: row["files"] for row in json.loads(told()[0])} == {first: 1, second: 1}
    assert run(["keys", "retire", first, "--encrypt", ref, "--data", str(data)]) == 1
    assert "1 files are sealed with" in told()[1]
    paths = sorted(data.rglob("*.log"))
    units = [path.read_bytes()[BLOCK_BYTES:] for path in paths]
    assert run(["keys", "rewrap", "--encrypt", ref, "--data", str(data)]) == 0
    assert "1 files are sealed with" in told()[1]
    assert [path.read_bytes()[BLOCK_BYTES:] for path in paths] == units
    assert run(["keys", "retire", second, "--encrypt", ref, "--data", str(data)]) == 1
    assert run(["keys", "retire", first, "--encrypt", ref, "--data", str(data)]) == 0
    assert journal(data, ref, 6, 5) == 5
    assert all(first.encode() not in path.read_bytes() for path in data.rglob("*") if path.is_file())


def test_plain_segments_from_before_encryption_hinder_no_rewrap(ref: str, tmp_path: Path, told: Told) -> None:
    data, first = tmp_path / "data", newest(ref)
    journal(data, "", 1, 3)
    plain = {path: path.read_bytes() for path in data.rglob("*.log")}
    assert journal(data, ref, 4, 5) == 5
    run(["keys", "rotate", "--encrypt", ref])
    second = newest(ref)
    for command in (["rewrap"], ["retire", first]):
        assert run(["keys", *command, "--encrypt", ref, "--data", str(data)]) == 0, told()
    told()
    assert run(["keys", "list", "--encrypt", ref, "--data", str(data), "--json"]) == 0
    assert {row["key"]: row["files"] for row in json.loads(told()[0])} == {second: 1}
    assert {path: path.read_bytes() for path in plain} == plain
    assert journal(data, ref, 6, 5) == 5


def test_a_topic_whose_key_is_destroyed_is_gone_and_others_are_not(ref: str, tmp_path: Path, told: Told) -> None:
    run(["keys", "create", "orders", "--encrypt", ref])
    mine, others = tmp_path / "mine", tmp_path / "others"
    journal(mine, ref, 1, 3, key="orders")
    journal(others, ref, 1, 3)
    key = newest(ref, "orders")
    both = ["--data", str(mine), "--data", str(others)]
    assert run(["keys", "retire", key, "--shred", "--yes", "--encrypt", ref, *both]) == 0
    with pytest.raises(KeyAbsent, match="'orders'"):
        journal(mine, ref, 4, 4, key="orders")
    with pytest.raises(KeyAbsent, match=key):
        journal(mine, ref, 4, 4)
    assert journal(others, ref, 4, 4) == 4


def test_keys_are_not_taken_from_a_broker_that_runs(ref: str, tmp_path: Path, told: Told) -> None:
    directory = DataDirectory.open(tmp_path / "data", 1)
    for command in (["rewrap"], ["retire", newest(ref)]):
        assert run(["keys", *command, "--encrypt", ref, "--data", str(tmp_path / "data")]) == 1
        assert "in use by another process" in told()[1]
    directory.close()


@pytest.mark.parametrize("writes", [0, 1])
def test_a_rewrap_that_is_killed_leaves_a_key_that_opens_and_can_be_repeated(
    ref: str, tmp_path: Path, writes: int
) -> None:
    class Dying(OsFiles):
        left = writes

        def write(self, fd: int, parts: object, position: int) -> int:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return super().write(fd, parts, position)  # type: ignore[arg-type]

    data = tmp_path / "data"
    journal(data, ref, 1, 3)
    run(["keys", "rotate", "--encrypt", ref])
    [found] = sealed_files(data)
    with pytest.raises(KeyboardInterrupt):
        rewrap(found, Keyring(ref), newest(ref), Dying())
    assert run(["keys", "retire", found.slot.key_id, "--encrypt", ref, "--data", str(data)]) == 1
    [segment] = data.rglob("*.log")
    torn = bytearray(segment.read_bytes())
    torn[SLOT_BYTES - 900 if writes == 0 else SLOT_BYTES + 900] ^= 1  # and the slot that was being written is torn
    segment.write_bytes(torn)
    assert journal(data, ref, 4, 3) == 3
    assert run(["keys", "rewrap", "--encrypt", ref, "--data", str(data)]) == 0
    assert [found.is_wrapped_by(newest(ref)) for found in sealed_files(data)] == [True]
    assert run(["keys", "retire", found.slot.key_id, "--encrypt", ref, "--data", str(data)]) == 0
    assert journal(data, ref, 4, 4) == 4


def test_a_key_is_retired_only_once_what_is_sealed_with_the_newer_one_is_on_the_disk(
    ref: str, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, first = tmp_path / "data", newest(ref)
    journal(data, ref, 1, 3)
    run(["keys", "rotate", "--encrypt", ref])
    assert run(["keys", "rewrap", "--encrypt", ref, "--data", str(data)]) == 0
    told()

    def failing(_files: OsFiles, _fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(OsFiles, "sync", failing)
        assert run(["keys", "retire", first, "--encrypt", ref, "--data", str(data)]) == 1
    assert "No key was removed" in told()[1]
    assert first in read_key_file(Path(ref.removeprefix("file:"))).keys
    assert run(["keys", "retire", first, "--encrypt", ref, "--data", str(data)]) == 0


def test_what_is_sealed_is_verified_without_keys_and_shown_with_them(ref: str, tmp_path: Path, told: Told) -> None:
    data = tmp_path / "data"
    journal(data, ref, 1, 3)
    with_data, with_keys = ["--data", str(data)], ["--data", str(data), "--encrypt", ref]
    assert run(["storage", "verify", *with_data]) == 0
    assert "3 good entries" in "".join(told())
    assert run(["storage", "verify", "--json", *with_keys]) == 0
    assert json.loads(told()[0])["findings"] == []
    assert run(["storage", "entries", "flights", "3", *with_data]) == 1
    assert "give --encrypt KEYREF" in told()[1]
    assert run(["storage", "entries", "flights", "3", "--json", *with_keys]) == 0
    assert [row["index"] for row in json.loads(told()[0])] == [1, 2, 3]
    assert run(["storage", "show", "flights", "3", *with_keys]) == 0
    [segment] = data.rglob("*.log")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert run(["storage", "verify", *with_data]) == 1
    assert "damaged" in told()[0]
    segment.write_bytes(whole[:100] + b"X" + whole[101:])
    assert run(["storage", "verify", *with_data]) == 1
    assert "one of the two copies of its key is damaged" in told()[0]
    assert run(["storage", "entries", "flights", "3", *with_keys]) == 0
    assert segment.read_bytes() == whole[:100] + b"X" + whole[101:]
