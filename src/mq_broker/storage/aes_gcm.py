"""AES-256-GCM of `cryptography`, which is an extra: nothing imports this module before keys are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mq_protocol.wire.envelope import Buffer

_TAG_BYTES: Final = 16


class AesGcm:
    """One key. What has several parts is encrypted part by part, so that nobody joins a MiB before. Any thread."""

    __slots__ = ("_algorithm", "_whole", "decrypt", "encrypt", "encrypt_into")

    def __init__(self, key: bytes) -> None:
        self._whole = AESGCM(key)
        self._algorithm = algorithms.AES(key)
        self.encrypt, self.encrypt_into = self._whole.encrypt, self._whole.encrypt_into
        self.decrypt = self._whole.decrypt

    def encrypt_parts_into(
        self, nonce: bytes, parts: Iterable[Buffer], associated_data: bytes | None, buf: memoryview
    ) -> int:
        """As `encrypt_into` of the parts joined: the same bytes."""
        encryptor = Cipher(self._algorithm, modes.GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(associated_data or b"")
        at = 0
        for part in parts:
            at += encryptor.update_into(part, buf[at:])
        encryptor.finalize()
        buf[at : at + _TAG_BYTES] = encryptor.tag
        return at + _TAG_BYTES
