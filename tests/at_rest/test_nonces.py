"""A nonce is used once with a key, whatever happens to a journal: else who has both entries learns what they are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mq_broker.core.machine.window import WindowBounds
from mq_broker.storage import keyring, sealed
from mq_broker.storage.aes_gcm import AesGcm
from mq_broker.storage.interface import Journal
from mq_broker.storage.journal.segments import pack_mark
from mq_broker.storage.keyring import Keyring
from tests.mq_broker.storage.bed import PLACE, Bed, Heard, frames_of, on_a_bed


class Used:
    """Which nonces were used with which data key."""

    def __init__(self) -> None:
        self.pairs: set[tuple[bytes, bytes]] = set()
        self.twice = 0

    def cipher(self, key: bytes) -> Any:
        used, real = self, AesGcm(key)

        class Noting:
            decrypt = real.decrypt

            def encrypt(self, nonce: bytes, *words: Any) -> bytes:
                used.note(key, nonce)
                return real.encrypt(nonce, *words)

            def encrypt_into(self, nonce: bytes, *words: Any) -> int:
                used.note(key, nonce)
                return real.encrypt_into(nonce, *words)

            def encrypt_parts_into(self, nonce: bytes, *words: Any) -> int:
                used.note(key, nonce)
                return real.encrypt_parts_into(nonce, *words)

        return Noting()

    def note(self, key: bytes, nonce: bytes) -> None:
        self.twice += (key, bytes(nonce)) in self.pairs
        self.pairs.add((key, bytes(nonce)))


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[Used]:
    found = Used()
    monkeypatch.setattr(keyring, "aead", lambda: found.cipher)
    yield found
    assert len(found.pairs) > 100


class Life:
    """A journal to which anything happens. `epoch` and `last` are what its leader would know."""

    def __init__(self, bed: Bed, rng: random.Random) -> None:
        self.bed = bed
        self.rng = rng
        self.epoch = 1
        self.journal: Journal
        self.heard: Heard
        self._open()

    def _open(self) -> None:
        self.bed.keys = Keyring("test:", self.bed.provider)  # as after a restart: it knows no data key
        self.journal, self.heard, _ = self.bed.open()
        self.epoch += 1

    @property
    def last(self) -> int:
        return self.journal.last_index

    async def append(self) -> None:
        size = self.rng.choice([1, 40, 400, 20_000])
        self.journal.append(frames_of(self.last + 1, self.last + self.rng.randint(1, 6), self.epoch, size))
        await self.heard.until(lambda: self.last in self.heard.of("flushed"))

    async def another_leader(self) -> None:
        """Cuts the end off, and writes other entries there."""
        self.journal.truncate(max(self.journal.first_index, self.last - self.rng.randint(0, 5)))
        self.epoch += 1
        await self.append()

    async def fails(self) -> None:
        """The disk takes a part of what is written; it is written again."""
        self.bed.files.room = self.rng.choice([0, 1, 100, 5_000, 9_000])
        first = self.last + 1
        self.journal.append(frames_of(first, first + 5, self.epoch, 3_000))
        await self.heard.until(lambda: bool(self.heard.of("refused")))
        self.bed.files.room = None
        self.heard.calls.clear()
        self.epoch += 1
        await self.append()

    async def crash(self) -> None:
        """Of the last segment a part is gone, and the mark says that it may be."""
        last = self.last
        await self.bed.crash(self.journal)
        segment = self.bed.segments[-1]
        size = segment.stat().st_size
        with segment.open("r+b") as file:
            file.truncate(max(0, size - self.rng.choice([0, 1, 50, 3_000])))
        mark = int(segment.stem) - 1
        (self.bed.path / "flushed").write_bytes(pack_mark(PLACE, min(mark, last)))
        self._open()

    async def stop(self) -> None:
        await self.journal.close()
        if self.rng.random() < 0.3:
            self.bed.provider.newest["default"] += 1
        self._open()

    async def shorten(self) -> None:
        await self.journal.shorten_to(max(1, self.last - 4), WindowBounds(50))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
def test_no_nonce_is_used_twice_with_a_key_whatever_happens_to_a_journal(tmp_path: Path, used: Used, seed: int) -> None:
    async def test(bed: Bed) -> None:
        rng = random.Random(seed)
        life = Life(bed, rng)
        for _ in range(60):
            step = rng.choice(
                [life.append, life.append, life.another_leader, life.fails, life.crash, life.stop, life.shorten]
            )
            await step()
        await life.journal.close()

    on_a_bed(test, tmp_path, segment_bytes_max=25_000)
    assert used.twice == 0


def test_a_nonce_that_a_position_gives_is_used_twice_and_that_is_noticed(
    tmp_path: Path, used: Used, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge itself: what sealing must not do."""
    counted = iter(range(1 << 30))
    monkeypatch.setattr(sealed.os, "urandom", lambda size: (next(counted) % 150).to_bytes(size, "little"))

    async def test(bed: Bed) -> None:
        life = Life(bed, random.Random(0))
        for _ in range(100):
            await life.another_leader()
        await life.journal.close()

    on_a_bed(test, tmp_path)
    assert used.twice > 0
