"""The file of keys while it is changed: no key is lost, whatever ends the change, and whoever else makes one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mq_broker.storage import key_file
from mq_broker.storage.key_file import KeyFile, add_key, changing, read_key_file, write_key_file
from mq_broker.storage.key_provider import FileKeyProvider
from mq_protocol.errors import InvalidSetting


class Died(BaseException):
    """The process ends here."""


class MortalOs:
    """The system's calls of a process that dies before the call after `left` others; None: it lives. `full`: they fail
    instead, as on a disk that is full."""

    def __init__(self, *, full: bool = False) -> None:
        self.left: int | None = None
        self.full = full

    def __getattr__(self, name: str) -> object:
        found = getattr(os, name)
        if name not in ("open", "write", "fsync", "pread"):
            return found

        def call(*words: object) -> object:
            if self.left is None:
                return found(*words)
            if self.left <= 0 and self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self.left <= 0:
                if name == "write":  # of the last write a part is there
                    os.write(words[0], bytes(words[1])[:40])  # type: ignore[arg-type, call-overload]
                raise Died
            self.left -= 1
            return found(*words)

        return call


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    content = KeyFile()
    content.add("default")
    write_key_file(path, content)
    return path


@pytest.mark.parametrize("full", [False, True], ids=["killed", "disk full"])
def test_a_change_that_ends_at_any_call_leaves_the_old_file_or_the_new_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    ended = 0
    mortal = MortalOs(full=full)
    monkeypatch.setattr(key_file, "os", mortal)
    while True:
        mortal.left = None
        before = read_key_file(path)
        mortal.left = ended
        try:
            add_key(path, read_key_file(path), "default")
        except (Died, OSError, InvalidSetting):
            mortal.left = None
        else:
            break
        after = read_key_file(path)
        assert before.keys.items() <= after.keys.items()
        assert after.current["default"] in after.keys
        assert not full or [each.name for each in path.parent.iterdir()] == [path.name]
        ended += 1
    mortal.left = None
    assert ended > 10
    assert len(read_key_file(path).keys) > len(before.keys)


def test_no_key_can_be_used_before_it_is_on_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker sees a file that is renamed, and a loss of power may take the rename back."""
    durable = read_key_file(path)
    seen = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            found = getattr(os, name)
            if name != "fsync":
                return found

            def fsync(fd: int) -> None:
                nonlocal durable
                visible = read_key_file(path)
                seen.append(set(visible.current.values()) <= durable.keys.keys())
                found(fd)
                if os.path.isdir(f"/proc/self/fd/{fd}"):
                    durable = visible

            return fsync

    monkeypatch.setattr(key_file, "os", Watched())
    made = add_key(path, read_key_file(path), "default")
    assert made in durable.keys
    assert (len(seen), set(seen)) == (4, {True})


def test_commands_at_the_same_time_lose_none_of_their_keys(path: Path) -> None:
    command = [sys.executable, "-m", "mq_cli.main", "keys"]
    running = [
        subprocess.Popen([*command, *words, "--encrypt", f"file:{path}"], stderr=subprocess.PIPE)
        for words in (["create", "a"], ["rotate"])
    ]
    told = [process.communicate(timeout=120)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0] * 2, told
    content = read_key_file(path)
    assert len(content.keys) == 3
    assert all(text.split(" ", 1)[0] in content.keys for text in told)
    assert content.current.keys() == {"default", "a"}


def test_who_waits_too_long_for_another_is_told_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file, "LOCK_DEADLINE_S", 0.0)
    with changing(path), pytest.raises(InvalidSetting, match="being changed by another"), changing(path):
        raise AssertionError("both changed it")
    (path.parent / "other").mkdir()
    link = path.parent / "other" / path.name
    link.symlink_to(path)
    with changing(link), pytest.raises(InvalidSetting, match="being changed by another"), changing(path):
        raise AssertionError("both changed it, one of them by a link")
    with changing(path):
        pass


def test_a_link_to_the_file_stays_one_and_both_paths_have_the_new_key(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link.json"
    link.parent.mkdir()
    link.symlink_to(path)
    provider = FileKeyProvider(path)
    with changing(link):
        made = add_key(link, read_key_file(link), "default")
    assert link.is_symlink()
    assert provider.current("default") == made


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_change_by_root_leaves_the_file_to_the_brokers_user(path: Path) -> None:
    os.chown(path, 4_711, 4_712)
    with changing(path):
        add_key(path, read_key_file(path), "default")
    for each in path.parent.iterdir():
        found = each.stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (4_711, 4_712, 0o600), each


def test_a_file_that_would_be_too_large_to_be_read_is_not_written(path: Path) -> None:
    content = read_key_file(path)
    before = path.read_bytes()
    content.keys |= {f"orders-{number:08x}": bytes(32) for number in range(20_000)}
    with pytest.raises(OSError, match="are read"):
        write_key_file(path, content)
    assert path.read_bytes() == before
