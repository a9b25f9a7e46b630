"""A random life on a disk that is full, cannot cut, cannot sync and cannot rename now and then, against a model: what
was told to be flushed is there, in its place, whatever fails and whenever the process is killed; and once nothing fails
any more entries are taken and flushed again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mq_broker.storage.interface import Frame
from tests.mq_broker.storage.bed import Bed, eventually, frames_of, joined, on_a_bed, sealed_by_default

ALL = 1 << 40


class Life:
    """`model`: what the journal has. `safe`: up to here it was told to be flushed, and was not cut since."""

    def __init__(self, bed: Bed, rng: random.Random) -> None:
        self.bed = bed
        self.rng = rng
        self.model: list[Frame] = []
        self.safe = 0
        self.epoch = 1
        self.refusals = self.replaced = 0
        self._open()

    def _open(self) -> None:
        self.journal, self.heard, self.opened = self.bed.open()

    def break_something(self) -> None:
        files, rng = self.bed.files, self.rng
        files.room = rng.choice([None, None, 0, 50, 250, 1_000, 6_000])
        files.failing_truncates = rng.choice([0, 0, 1, 3])
        files.failing_syncs = rng.choice([0, 0, 0, 1])
        files.failing_replaces = rng.choice([0, 0, 0, 0, 1])

    def append(self) -> None:
        first = self.journal.last_index + 1
        frames = frames_of(first, first + self.rng.randrange(4), self.epoch, self.rng.choice([1, 40, 300]))
        self.journal.append(frames)
        self.model += frames

    def truncate(self) -> None:
        """Another leader has come."""
        kept = self.rng.randrange(max(0, len(self.model) - 6), len(self.model) + 1)
        self.journal.truncate(kept)
        del self.model[kept:]
        self.safe = min(self.safe, kept)
        self.epoch += 1

    async def settled(self) -> None:
        """All that was ordered is done, or refused and cut."""
        await eventually(lambda: self.bed.writer.pending_orders == 0)
        for what, index, epoch in self.heard.calls:
            if what == "flushed" and int(index) <= len(self.model):
                was_cut = self.model[int(index) - 1].entry.leader_epoch != epoch
                self.safe = self.safe if was_cut else max(self.safe, int(index))
            self.refusals += what == "refused"
            self.replaced += what == "replaced"
        last = self.journal.last_index
        assert self.safe <= last <= len(self.model)
        if last < len(self.model):
            self.epoch += 1
        del self.model[last:]
        self._reads_as_the_model()

    def _reads_as_the_model(self) -> None:
        if self.model:
            assert joined(self.journal.read(1, len(self.model), ALL)) == joined(self.model)

    def _mend(self) -> None:
        files = self.bed.files
        files.room, files.failing_truncates, files.failing_syncs, files.failing_replaces = None, 0, 0, 0

    async def goes_on(self) -> None:
        """Nothing fails any more."""
        self._mend()
        self.append()
        last = self.model[-1].entry
        flushed = ("flushed", last.index, last.leader_epoch)
        await self.heard.until(lambda: flushed in self.heard.calls or self._is_dead)
        await self.settled()
        if self._is_dead:
            await self.ended()
            await self.goes_on()

    @property
    def _is_dead(self) -> bool:
        """The disk took no new log id: the broker is to be started again."""
        return any("restart this broker" in str(reason) for what, _, reason in self.heard.calls if what == "refused")

    async def ended(self) -> None:
        """Killed, or stopped. A truncation that is owed may come to nothing: the next leader cuts again."""
        self._mend()
        if self.rng.random() < 0.5:
            await self.bed.crash(self.journal)
        else:
            await self.journal.close()
        self._open()
        assert self.opened.damaged == ""
        found = self.journal.read(1, self.journal.last_index, ALL) if self.journal.last_index else []
        assert joined(found[: self.safe]) == joined(self.model[: self.safe])
        self.model, self.epoch = found, self.epoch + 1


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
def test_what_was_told_to_be_flushed_is_there_whatever_fails_and_entries_are_taken_once_nothing_does(
    tmp_path: Path, seed: int, durability: str, sealed: bool
) -> None:
    async def test(bed: Bed) -> None:
        rng = random.Random(seed)
        life = Life(bed, rng)
        for _ in range(60):
            life.break_something()
            for _ in range(rng.randint(1, 4)):
                rng.choice((life.append, life.append, life.truncate))()
            await life.settled()
            if rng.random() < 0.4:
                await life.goes_on()
            if rng.random() < 0.2:
                await life.ended()
        await life.goes_on()
        await life.journal.close()
        assert life.refusals > 5
        assert life.replaced > 0 or durability == "os", "its syncs may come when nothing fails"

    token = sealed_by_default.set(sealed)
    try:
        on_a_bed(test, tmp_path, durability, segment_bytes_max=1_500, cache_bytes_max=0)
    finally:
        sealed_by_default.reset(token)
