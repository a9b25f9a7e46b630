"""Where the keys are that wrap the data keys of sealed segments.

A *key reference* names a provider: `file:PATH`, or `NAME:…` of a package that has an entry point of that name in the
group `tritonmq.kms`: a callable that is given what is behind the colon and returns a `KeyProvider`.

A provider may be far away and slow. It is asked in threads, and an answer is waited for up to `DEADLINE_S`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from mq_protocol.errors import InvalidSetting, TritonMQError
from mq_protocol.names import KEY_NAME, quoted

DEFAULT: Final = "default"
"""The name of the key of topics that have no key of their own."""

ENTRY_POINTS: Final = "tritonmq.kms"
DEADLINE_S: Final = 10.0
KEY_BYTES: Final = 32
FILE_BYTES_MAX: Final = 1 << 20
FORMAT: Final = 1

_NONCE_BYTES: Final = 12

T = TypeVar("T")


class NoSuchKey(TritonMQError):
    """The provider has no key of that id or name, now."""


class DoesNotUnwrap(TritonMQError):
    """The key of that id is another than the one that wrapped it, or what was wrapped has been altered."""


class KeyProvider(Protocol):
    """What holds keys that wrap others. Called from any thread, several at a time.

    All but `NoSuchKey` and `DoesNotUnwrap` counts as "it is away for now": the broker asks again.
    """

    def current(self, name: str) -> str:
        """The id of the newest key called `name`: `default`, or what a topic's `encryption_key` says. Raises
        `NoSuchKey`."""

    def wrap(self, key_id: str, data_key: bytes, context: bytes) -> bytes:
        """32 bytes, as up to 1,024 that only this key opens, and only with the same `context`. Raises `NoSuchKey`."""

    def unwrap(self, key_id: str, wrapped: bytes, context: bytes) -> bytes:
        """What was wrapped. Raises `NoSuchKey` and `DoesNotUnwrap`."""


def provider_of(reference: str) -> KeyProvider:
    """The provider that a key reference names. Raises `InvalidSetting`: for a form or a name that is not known, a key
    file that is not fit to be used, and without the package `cryptography`."""
    aead()
    scheme, colon, rest = reference.partition(":")
    if not colon or not rest:
        raise InvalidSetting(f"{quoted(reference)} names no keys: write file:PATH, e.g. file:/etc/tritonmq/keys.json")
    if scheme == "file":
        return FileKeyProvider(Path(rest))
    found = [point for point in entry_points(group=ENTRY_POINTS) if point.name == scheme]
    if not found:
        known = ", ".join(["file", *sorted({point.name for point in entry_points(group=ENTRY_POINTS)})])
        raise InvalidSetting(f"no key provider is called {quoted(scheme)}: there are {known}; install its package")
    try:
        return Patient(found[0].load()(rest), reference)
    except TritonMQError:
        raise
    except Exception as error:
        raise InvalidSetting(f"the key provider of {quoted(reference)} cannot be used ({error!r})") from error


def aead() -> Callable[[bytes], Any]:
    """AES-GCM of `cryptography`. Raises `InvalidSetting` without that package."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise InvalidSetting(
            "encryption at rest needs the package cryptography: pip install 'tritonmq[security]'"
        ) from error
    return AESGCM


class Patient:
    """A provider whose every answer is waited for up to a deadline, in a thread of its own that nobody waits for at the
    end."""

    def __init__(self, provider: KeyProvider, reference: str, deadline_s: float = DEADLINE_S) -> None:
        self._provider = provider
        self._reference = reference
        self._deadline_s = deadline_s

    def current(self, name: str) -> str:
        return self._ask(lambda: self._provider.current(name))

    def wrap(self, key_id: str, data_key: bytes, context: bytes) -> bytes:
        return self._ask(lambda: self._provider.wrap(key_id, data_key, context))

    def unwrap(self, key_id: str, wrapped: bytes, context: bytes) -> bytes:
        return self._ask(lambda: self._provider.unwrap(key_id, wrapped, context))

    def _ask(self, call: Callable[[], T]) -> T:
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                answer.set_exception(error)

        threading.Thread(target=run, name="key-provider", daemon=True).start()
        try:
            return answer.result(self._deadline_s)
        except TimeoutError as error:
            raise TimeoutError(f"{self._reference} did not answer in {self._deadline_s:g} s") from error


# ------------------------------------------------------------------ keys in a file


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
        for key_id, text in keys.items():
            if type(text) is not str or len(key := base64.b64decode(text, validate=True)) != KEY_BYTES:
                raise ValueError(f"key {quoted(key_id)} is not {KEY_BYTES} bytes in base64")
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


def write_key_file(path: Path, content: KeyFile) -> None:
    """Durably, and at once: after a crash it is the old or the new one. For its owner alone. Raises `OSError`."""
    new = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(content.encode())
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class FileKeyProvider:
    """Keys in a file that its owner alone may read. Read again when it is another file, or was changed."""

    at_hand: Final = True

    def __init__(self, path: Path) -> None:
        """Raises `InvalidSetting`."""
        self.path = path
        self._guard = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._content = KeyFile()
        self._read()

    def current(self, name: str) -> str:
        content = self._read()
        key_id = content.current.get(name)
        if key_id is None or key_id not in content.keys:
            raise NoSuchKey(f"file:{self.path} has no key called {quoted(name)}: see `tritonmq keys create`")
        return key_id

    def wrap(self, key_id: str, data_key: bytes, context: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + bytes(self._cipher(key_id).encrypt(nonce, data_key, context))

    def unwrap(self, key_id: str, wrapped: bytes, context: bytes) -> bytes:
        cipher = self._cipher(key_id)
        try:
            return bytes(cipher.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], context))
        except Exception as error:
            raise DoesNotUnwrap(
                f"key {quoted(key_id)} of file:{self.path} is not the one that was used, or what it wrapped was altered"
            ) from error

    def _cipher(self, key_id: str) -> Any:
        key = self._read().keys.get(key_id)
        if key is None:
            raise NoSuchKey(f"file:{self.path} has no key {quoted(key_id)}: put it back into that file")
        return aead()(key)

    def _read(self) -> KeyFile:
        with self._guard:
            try:
                now = self.path.stat()
            except OSError as error:
                raise InvalidSetting(
                    f"keys cannot be read from {self.path} ({error.strerror}): see `tritonmq keys create`"
                ) from error
            seen = (now.st_ino, now.st_mtime_ns, now.st_mode)
            if seen != self._seen:
                self._content = read_key_file(self.path)
                self._seen = seen
            return self._content
