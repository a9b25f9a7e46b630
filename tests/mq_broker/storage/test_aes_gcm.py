"""What is encrypted part by part is what `cryptography` makes of the parts joined."""

from __future__ import annotations

import os

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mq_broker.storage.aes_gcm import AesGcm

KEY = bytes(range(32))
NONCE = b"n" * 12


@pytest.mark.parametrize("sizes", [(), (0,), (1, 0, 15), (16, 17), (100, 70_001), (3, 1 << 20, 5)])
def test_parts_are_encrypted_as_if_they_were_one(sizes: tuple[int, ...]) -> None:
    parts = [memoryview(os.urandom(size)) for size in sizes]
    plain = b"".join(parts)
    room = bytearray(len(plain) + 16)
    assert AesGcm(KEY).encrypt_parts_into(NONCE, parts, b"place", memoryview(room)) == len(room)
    assert bytes(room) == AESGCM(KEY).encrypt(NONCE, plain, b"place")
    assert AesGcm(KEY).decrypt(NONCE, room, b"place") == plain
    with pytest.raises(InvalidTag):
        AesGcm(KEY).decrypt(NONCE, room, b"another")


def test_what_has_no_associated_data_is_encrypted_without() -> None:
    room = bytearray(5 + 16)
    AesGcm(KEY).encrypt_parts_into(NONCE, [b"plain"], None, memoryview(room))
    assert bytes(room) == AESGCM(KEY).encrypt(NONCE, b"plain", None)
