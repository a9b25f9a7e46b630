"""The file that has the keys which wrap data keys: reading it, and changing it so that no key is ever lost.

A change replaces the whole file: the new one is written beside it, synced, read back, renamed, and the directory is
synced. Until the rename the old one is as it was. Who changes it holds a lock from before it reads until it has
written (`changing`), since two who read the same file would each write it without the other's key.

A key can be used only once it is durable (`add_key`): what is sealed with a key that a loss of power takes away is
gone. A broker sees the file as soon as it has its name, which may be before the directory is on the disk.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mq_protocol.errors import InvalidSetting
from mq_protocol.names import KEY_NAME, quoted

KEY_BYTES: Final = 32
FILE_BYTES_MAX: Final = 1 << 20
FORMAT: Final = 1

LOCK_DEADLINE_S: Final = 30.0
_LOCK_AGAIN_S: Final = 0.05


@dataclass(slots=True)
class KeyFile:
    """What a key file holds. `current`: the id of the newest key of each name. `keys`: 32 bytes each, by id."""

    current: dict[str, str] = field(default_factory=dict)
    keys: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str) -> str:
        """A new key under that name, and the newest from now on: its id, which no key had before."""
        if not KEY_NAME.fullmatch(name):
            raise InvalidSetting(f"{quoted(name)} is no key's name: give 1 to 64 letters, digits, `.`, `_` and `-`")
        key_id = f"{name}-{secrets.token_hex(4)}"  # no two files have different keys of one id
        while key_id in self.keys:
            key_id = f"{name}-{secrets.token_hex(4)}"
        self.keys[key_id] = secrets.token_bytes(KEY_BYTES)
        self.current[name] = key_id
        return key_id

    def encode(self) -> bytes:
        keys = {key_id: base64.b64encode(key).decode() for key_id, key in self.keys.items()}
        return (json.dumps({"format": FORMAT, "current": self.current, "keys": keys}, indent=1) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> KeyFile:
        """Raises `ValueError` for anything that is no key file of this format."""
        content = json.loads(data)
        if type(content) is not dict or content.get("format") != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        current, keys = content.get("current"), content.get("keys")
        if type(current) is not dict or type(keys) is not dict:
            raise ValueError("it has no keys")
        decoded: dict[str, bytes] = {}
        for number, (key_id, text) in enumerate(keys.items(), 1):
            if type(text) is not str or len(key := base64.b64decode(text, validate=True)) != KEY_BYTES:
                # By its number: in a damaged file a key's text may stand in the place of an id
                raise ValueError(f"key {number} of {len(keys)} is not {KEY_BYTES} bytes in base64")
            decoded[key_id] = key
        if any(type(key_id) is not str for key_id in current.values()):
            raise ValueError("its values are of other types")
        return cls(current, decoded)


def read_key_file(path: Path) -> KeyFile:
    """Raises `InvalidSetting` if it cannot be read, others may read it, or it is no key file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                raise InvalidSetting(f"{path} is no file")
            if mode & 0o077:
                raise InvalidSetting(
                    f"{path} has keys, and others than its owner may use it: chmod 600 {path}, and think about whether "
                    "they have read it"
                )
            data = os.read(fd, FILE_BYTES_MAX + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise InvalidSetting(
            f"keys cannot be read from {path} ({error.strerror}): see `tritonmq keys create`"
        ) from error
    try:
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"it is larger than {FILE_BYTES_MAX} bytes")
        return KeyFile.decode(data)
    except (ValueError, RecursionError) as error:
        raise InvalidSetting(f"{path} is no file of keys ({error}): restore it from your backup") from None


@contextlib.contextmanager
def changing(path: Path) -> Iterator[None]:
    """Nobody else changes the key file meanwhile. Read it within. Raises `InvalidSetting` if somebody does for long,
    and `OSError`."""
    path = path.resolve()
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _give_to_the_owner_of(path, fd)
        _take(fd, path)
        yield
    finally:
        os.close(fd)


def _take(fd: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_DEADLINE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise InvalidSetting(
                    f"{path} is being changed by another `tritonmq keys`: wait until that has ended, then do it again"
                ) from None
            time.sleep(_LOCK_AGAIN_S)
        else:
            return


def add_key(path: Path, content: KeyFile, name: str) -> str:
    """A new key in the file, whose content this is, and the newest of its name: its id. Within `changing`. Raises
    `InvalidSetting` and `OSError`."""
    former = dict(content.current)
    key_id = content.add(name)
    write_key_file(path, KeyFile(former, content.keys))  # durable, and used by nobody
    write_key_file(path, content)
    return key_id


def write_key_file(path: Path, content: KeyFile) -> None:
    """Durably, and at once: after a crash it is the old or the new one. For the owner of the old one, and for nobody
    else. A symbolic link stays one. Raises `OSError`: the old one is there then, or the new one if only its directory
    could not be synced."""
    path = path.resolve()
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)  # of a change that was cut short
    try:
        _write_new(path, new, content.encode())
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _write_new(path: Path, new: Path, data: bytes) -> None:
    """Onto the disk, and read back."""
    if len(data) > FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, f"keys take {len(data)} bytes, and up to {FILE_BYTES_MAX} are read")
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _give_to_the_owner_of(path, fd)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # so that it is read from the disk
        if os.pread(fd, len(data) + 1, 0) != data:
            raise OSError(errno.EIO, "what was written is not what is read back")
    finally:
        os.close(fd)


def _give_to_the_owner_of(path: Path, fd: int) -> None:
    """A change by root must not take the file from the broker's user."""
    try:
        owner = path.stat()
    except FileNotFoundError:
        return
    if owner.st_uid != os.fstat(fd).st_uid:
        os.fchown(fd, owner.st_uid, owner.st_gid)
