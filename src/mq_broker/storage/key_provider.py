"""Where the keys are that wrap the data keys of sealed segments.

A *key reference* names a provider: `file:PATH`, or `NAME:…` of a package that has an entry point of that name in the
group `tritonmq.kms`: a callable that is given what is behind the colon and returns a `KeyProvider`.

A provider may be far away and slow. It is asked in threads, and an answer is waited for up to `DEADLINE_S`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from mq_broker.storage.key_file import KeyFile, read_key_file
from mq_protocol.errors import InvalidSetting, TritonMQError
from mq_protocol.names import quoted

DEFAULT: Final = "default"
"""The name of the key of topics that have no key of their own."""

ENTRY_POINTS: Final = "tritonmq.kms"
DEADLINE_S: Final = 10.0

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
        from mq_broker.storage.aes_gcm import AesGcm
    except ImportError as error:
        raise InvalidSetting(
            "encryption at rest needs the package cryptography: pip install '.[security]' in a clone of TritonMQ"
        ) from error
    return AesGcm


class Patient:
    """A provider whose every answer is waited for up to a deadline, in a thread of its own that nobody waits for at the
    end."""

    def __init__(self, provider: KeyProvider, reference: str) -> None:
        self._provider = provider
        self._reference = reference

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
            return answer.result(DEADLINE_S)
        except TimeoutError as error:
            raise TimeoutError(f"{self._reference} did not answer in {DEADLINE_S:g} s") from error


# ------------------------------------------------------------------ keys in a file


class FileKeyProvider:
    """Keys in a file that its owner alone may read. Read again when it is another file, or was changed."""

    at_hand: Final = True

    def __init__(self, path: Path) -> None:
        """Raises `InvalidSetting`."""
        self.path = path
        self._guard = threading.Lock()
        self._seen: tuple[int, int, int, int] | None = None
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
            seen = (now.st_ino, now.st_mtime_ns, now.st_mode, now.st_size)
            if seen != self._seen:
                self._content = read_key_file(self.path)
                self._seen = seen
            return self._content
