"""Opening from a checkpoint comes to what a full reading comes to, or it is not used."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from mq_broker.core.machine.state import Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Identity, ReplicaSettings
from mq_broker.core.replication.replica import Replica
from mq_broker.measured import SCRUB_DAMAGE, SCRUBBED_BYTES
from mq_broker.storage.codec.checkpoint import MEANING
from mq_broker.storage.codec.snapshot import encode_snapshot
from mq_broker.storage.interface import Derived, Frame, OpenJournal
from mq_broker.storage.journal import keeping
from mq_broker.storage.journal.segments import pack_mark
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.offset_index import FrozenIndex, OffsetIndex
from mq_protocol.errors import StorageFailed
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import (
    PLACE,
    Bed,
    Killed,
    MortalFiles,
    Saved,
    TrickFiles,
    derived_of,
    eventually,
    frame_of,
    frames_of,
    index_change,
    joined,
    on_a_bed,
    one_of_each_operation,
    operations_with_attributes,
    operations_with_owners,
    random_frame,
    sealed_by_default,
    state_of,
)

ALL = 1 << 40
WINDOW = WindowBounds(50)


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def both(request: pytest.FixtureRequest) -> Any:
    token = sealed_by_default.set(request.param)
    yield request.param
    sealed_by_default.reset(token)


def whole_state(opened: OpenJournal) -> tuple[object, ...]:
    """All that a partition is built of, once every entry is committed."""
    recovered, journal = opened.recovered, opened.journal
    replica = Replica("t", 0, Identity(1, 1, "one"), ReplicaSettings((1,), 1, dedup_uuids_max=50), recovered, 0)
    shared = replica._shared
    base = recovered.snapshot.state.next_offset if recovered.snapshot is not None else 0
    index = OffsetIndex(None, 0, base) if opened.offsets is None else OffsetIndex.thawed(opened.offsets)
    index.trim(base)
    shared.commit_to(shared.log.last_index)
    for effect in shared.effects:
        index_change(index, effect)  # type: ignore[arg-type]
    log = shared.log
    epochs = [log.epoch_at(at) for at in range(log.base_index, log.last_index + 1)]
    [frozen] = index.freezing()
    assert frozen is not None
    return (
        replica.machine.state(),
        _relative(frozen),
        epochs,
        log.last_timestamp_us,
        log.applied,
        journal.first_index,
        journal.bytes_stored,
        joined(journal.read(journal.first_index, journal.last_index, ALL)),
    )


def _relative(frozen: FrozenIndex) -> tuple[object, ...]:
    """Sums of bytes count from anywhere."""
    index = OffsetIndex.thawed(frozen)
    batches, at = [], index.kept_from(index.log_start_offset)
    while at < index.log_end_offset:
        batch = index.find(at)
        batches.append((batch, index.newest_us(at), index.bytes_between(0, at)))
        at = index.kept_from(batch.base_offset + batch.record_count)
    return batches, frozen[:2], frozen.gaps, frozen.has_priorities, frozen.has_expiries, index.bytes_total


async def written(bed: Bed, frames: list[Frame], last_index: int) -> Derived:
    """A journal that a kill left, with a checkpoint of the entries up to that one. Returns what all came to."""
    journal, heard, _ = bed.open()
    journal.append(frames)
    await heard.until_flushed(frames[-1].entry.index)
    assert await bed.keep(journal, last_index)
    derived = derived_of(journal, len(frames))
    await bed.crash(journal)
    return derived


async def reopened(bed: Bed) -> tuple[bool, tuple[object, ...]]:
    """Whether the checkpoint was gone on from; and what was found."""
    journal, _, opened = bed.open()
    found = opened.recovered.checkpoint is not None, whole_state(opened)
    await bed.crash(journal)
    return found


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 60))])
def test_a_checkpoint_and_what_follows_it_come_to_what_all_entries_come_to(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 60)

    async def test(bed: Bed) -> None:
        journal, heard, _ = bed.open()
        epoch, frames = 1, []
        for index in range(1, count + 1):
            epoch += rng.random() < 0.1
            frames.append(random_frame(rng, index, epoch))
        journal.append(frames)
        await heard.until_flushed(count)
        if rng.random() < 0.5:
            await journal.shorten_to(rng.randint(1, count), WindowBounds(50))
        at = rng.randint(journal.first_index, count) if journal.first_index <= count else 0
        kept = bool(at) and await bed.keep(journal, at)
        assert kept == bool(at)
        if rng.random() < 0.5:
            await journal.shorten_to(rng.randint(1, count), WindowBounds(50))
        still = journal.first_index <= at
        if rng.random() < 0.5:
            await journal.close()
        else:
            await bed.crash(journal)
        used, found = await reopened(bed)
        assert used == (kept and still)
        (bed.path / "checkpoint").unlink(missing_ok=True)
        assert await reopened(bed) == (False, found)

    token = sealed_by_default.set(seed % 2 == 1)
    try:
        on_a_bed(test, tmp_path, segment_bytes_max=3_000)
    finally:
        sealed_by_default.reset(token)


def test_what_entries_come_to_is_what_it_was_or_checkpoints_have_another_meaning() -> None:
    """If this fails since the state machine makes another state of the same entries, raise `MEANING`."""
    rng = random.Random(5)
    operations = [*one_of_each_operation(), *operations_with_attributes(), *operations_with_owners()]
    frames = [frame_of(index, 1, b"x", rng.choice(operations)) for index in range(1, 400)]
    state = state_of(frames, WINDOW)
    digest = hashlib.sha256(encode_snapshot(PLACE, Snapshot(399, 1, 1, state))).hexdigest()
    assert (MEANING, digest[:16]) == (1, "a14635ad1e977246")


@real_time
async def test_only_what_follows_a_checkpoint_is_read(tmp_path: Path) -> None:
    class Counting(TrickFiles):
        taken = 0

        def read(self, fd: int, size: int, position: int) -> bytes:
            data = super().read(fd, size, position)
            self.taken += len(data)
            return data

    async with Bed(tmp_path, segment_bytes_max=50000) as bed:
        await written(bed, frames_of(1, 300, size=1_000), 290)
        for used in (True, False):
            bed.files = bed.writer.files = Counting()
            journal, _, opened = bed.open()
            assert (opened.recovered.checkpoint is not None) == used
            assert (bed.files.taken < 100_000) == used
            assert len(opened.recovered.entries) == (10 if used else 300)
            await bed.crash(journal)
            (bed.path / "checkpoint").unlink(missing_ok=True)


@real_time
async def test_a_checkpoint_with_any_byte_changed_or_cut_off_anywhere_is_passed_over(
    tmp_path: Path, both: bool
) -> None:
    async with Bed(tmp_path) as bed:
        await written(bed, [frame_of(index, 1, b"x") for index in range(1, 5)], 3)
        path = bed.path / "checkpoint"
        whole, expected = path.read_bytes(), await reopened(bed)
        assert expected[0]
        places = [*range(0, len(whole), 5 if len(whole) < 3_000 else 31), len(whole) - 1]
        for at in places:
            path.write_bytes(whole[:at] + bytes((whole[at] ^ 0x10,)) + whole[at + 1 :])
            assert await _once(bed) == (False, 4)
        for length in [*places][:: 1 + len(places) // 100]:
            path.write_bytes(whole[:length])
            assert await _once(bed) == (False, 4)
        path.write_bytes(whole + b"\0")
        assert await _once(bed) == (False, 4)
        path.write_bytes(whole)
        assert await reopened(bed) == expected


async def _once(bed: Bed) -> tuple[bool, int]:
    journal, _, opened = bed.open()
    found = opened.recovered.checkpoint is not None, journal.last_index
    assert (opened.damaged, len(opened.recovered.entries)) == ("", journal.last_index)
    bed._abandon(journal)
    return found


@real_time
async def test_a_process_that_is_killed_while_it_stores_a_checkpoint_leaves_the_former_one_or_the_new_one(
    tmp_path: Path,
) -> None:
    async with Bed(tmp_path, segment_bytes_max=700) as bed:
        await written(bed, frames_of(1, 20), 5)
        expected = (await reopened(bed))[1]
        former, kinds = 5, set()
        for steps in range(20):
            files = bed.files = MortalFiles()
            bed.writer.files = files
            journal, _, _ = bed.open()
            files.steps_left = steps
            try:
                done = await bed.keep(journal, 10 + steps)
            except Killed:
                done = False
            bed._abandon(journal)
            bed.files = bed.writer.files = TrickFiles()
            journal, _, opened = bed.open()
            checkpoint = opened.recovered.checkpoint
            assert checkpoint is not None
            assert checkpoint.snapshot.last_index in (former, 10 + steps)
            kinds.add(former == checkpoint.snapshot.last_index)
            former = checkpoint.snapshot.last_index
            assert whole_state(opened) == expected
            bed._abandon(journal)
            if done:
                break
        assert done
        assert kinds == {True, False}


def _other_log(bed: Bed) -> None:
    document = json.loads((bed.path / "log.json").read_text())
    (bed.path / "log.json").write_text(json.dumps({**document, "log_id": "another"}))


def _mark(bed: Bed, index: int) -> None:
    (bed.path / "flushed").write_bytes(pack_mark(PLACE, index))


def _unchecked(bed: Bed) -> None:
    path = bed.path / "checkpoint"
    data = bytearray(path.read_bytes())
    data[:4] = bytes(4)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "change",
    [
        _other_log,
        lambda bed: _mark(bed, 14),
        lambda bed: (bed.path / "flushed").unlink(),
        _unchecked,
    ],
    ids=["of another log", "the mark is below it", "no mark", "its checksum does not hold"],
)
@real_time
async def test_what_a_checkpoint_is_not_of_is_read(tmp_path: Path, both: bool, change: Any) -> None:
    async with Bed(tmp_path, segment_bytes_max=700) as bed:
        await written(bed, frames_of(1, 20), 15)
        used, expected = await reopened(bed)
        assert used
        change(bed)
        assert await reopened(bed) == (False, expected)


@real_time
async def test_an_older_release_may_append_shorten_and_cut_while_a_checkpoint_lies_there(
    tmp_path: Path, both: bool
) -> None:
    """It does not know the file, and leaves it where it is."""

    async def older(bed: Bed, cut_to: int, frames: list[Frame], shorten: int = 0) -> None:
        aside = bed.path.parent / "not known"
        (bed.path / "checkpoint").rename(aside)
        journal, heard, _ = bed.open()
        journal.truncate(cut_to)
        journal.append(frames)
        if frames:
            await heard.until_flushed(frames[-1].entry.index)
        await eventually(lambda: not journal._cuts)  # type: ignore[attr-defined]
        if shorten:
            assert await journal.shorten_to(shorten, WINDOW) > 1
        await bed.crash(journal)
        aside.rename(bed.path / "checkpoint")

    async with Bed(tmp_path, segment_bytes_max=700) as bed:
        await written(bed, frames_of(1, 20), 15)
        saved = Saved(bed.path)
        for cut_to, frames, shorten, fits in (
            (20, frames_of(21, 40), 0, True),
            (16, frames_of(17, 18, epoch=2), 0, True),
            (20, frames_of(21, 30), 12, True),
            (20, frames_of(21, 60), 40, False),
            (15, [], 0, True),
            (14, [], 0, False),
            (14, frames_of(15, 20, epoch=2), 0, False),
            (14, frames_of(15, 15, epoch=2), 0, False),
            (0, frames_of(1, 20, epoch=2), 0, False),
        ):
            saved.put_back()
            await older(bed, cut_to, frames, shorten)
            used, found = await reopened(bed)
            assert used == fits, (cut_to, shorten)
            (bed.path / "checkpoint").unlink(missing_ok=True)
            assert await reopened(bed) == (False, found)


@real_time
async def test_a_checkpoint_is_never_of_more_than_what_is_synced_and_noted_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, held = keeping.store_checkpoint, []

    def storing_while(*arguments: Any) -> int:
        held.append(not files[0].sync_on.is_set())
        return store(*arguments)

    monkeypatch.setattr(keeping, "store_checkpoint", storing_while)
    files: list[TrickFiles] = []
    async with Bed(tmp_path, durability="os") as bed:
        files.append(bed.files)
        journal, heard, _ = bed.open()
        await bed.append_and_hold_sync(journal, frames_of(1, 10))
        await heard.until_flushed(10)
        storing = asyncio.create_task(bed.keep(journal, 10))
        for _ in range(1_000):  # turns of the loop: more than it takes where the sync is not waited for
            await asyncio.sleep(0)
        bed.let_go()
        assert await storing
        assert held == [False]
        assert bed.files.events.index("mark") < len(bed.files.events) - 1 - bed.files.events[::-1].index("replace")
        await journal.close()


@real_time
async def test_no_checkpoint_is_stored_of_a_log_whose_sync_failed(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 5))
        await heard.until_flushed(5)
        bed.files.failing_syncs = 1
        journal.append(frames_of(6, 6))
        await heard.until_heard("replaced")
        await heard.until_heard("refused")
        assert not await bed.keep(journal, 4)
        await journal.close()
        assert not await bed.keep(journal, 4)
        assert not (bed.path / "checkpoint").exists()


@real_time
async def test_a_truncation_below_a_checkpoint_takes_it_away_first(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        await written(bed, frames_of(1, 20), 15)
        journal, heard, _ = bed.open()
        journal.truncate(15)
        journal.append(frames_of(16, 16, epoch=2))
        await heard.until_flushed(16)
        assert (bed.path / "checkpoint").exists()
        journal.truncate(14)
        journal.append(frames_of(15, 15, epoch=3))
        await heard.until_flushed(15)
        assert not (bed.path / "checkpoint").exists()
        await journal.close()


@real_time
async def test_a_truncation_takes_away_a_checkpoint_that_did_not_fit(tmp_path: Path) -> None:
    """It might fit again, once the mark is beyond it."""
    async with Bed(tmp_path) as bed:
        await written(bed, frames_of(1, 20), 15)
        _mark(bed, 12)
        journal, heard, opened = bed.open()
        assert opened.recovered.checkpoint is None
        journal.truncate(13)
        journal.append(frames_of(14, 20))
        await heard.until_flushed(20)
        assert not (bed.path / "checkpoint").exists()
        await journal.close()


@pytest.mark.parametrize("how", ["read", "scrub"])
@real_time
async def test_damage_in_what_was_not_read_gives_the_log_a_new_id_and_is_put_aside_at_the_next_opening(
    tmp_path: Path, both: bool, how: str
) -> None:
    async with Bed(tmp_path, segment_bytes_max=900) as bed:
        derived = await written(bed, frames_of(1, 40), 35)
        segment = bed.segments[1]
        first = int(segment.stem)
        data = bytearray(segment.read_bytes())
        data[-150] ^= 1  # neither the first nor the last frame of it
        segment.write_bytes(data)
        journal, heard, opened = bed.open()
        assert opened.recovered.checkpoint is not None
        name, before = journal.log_id, SCRUB_DAMAGE.rows()[()]
        assert journal.keeping is not None
        if how == "read":
            with pytest.raises(StorageFailed, match="is damaged at byte"):
                journal.read(first, 34, ALL)
        else:
            while await journal.keeping.scrub(300):
                pass
            assert SCRUB_DAMAGE.rows()[()] == before + 1
        await heard.until_heard("replaced")
        assert journal.log_id != name
        assert not await journal.keeping.keep(derived)
        await journal.close()
        assert not await journal.keeping.keep(derived)
        again, _, opened = bed.open()
        assert opened.recovered.checkpoint is None
        assert "is damaged at byte" in opened.damaged
        assert first <= again.last_index < 34
        assert joined(again.read(1, 40, ALL)) == joined(frames_of(1, again.last_index))
        assert list(bed.path.glob("aside-1/why.txt"))
        assert not (bed.path / "checkpoint").exists()
        await again.close()


@real_time
async def test_the_scrub_verifies_each_byte_that_was_not_read_and_nothing_twice(tmp_path: Path, both: bool) -> None:
    async with Bed(tmp_path, segment_bytes_max=900) as bed:
        await written(bed, frames_of(1, 40), 35)
        journal, _, _ = bed.open()
        keeping = journal.keeping
        assert keeping is not None
        assert keeping.unscrubbed_bytes == sum(frame.size for frame in frames_of(1, 35))
        before, taken = SCRUBBED_BYTES.rows()[()], 0
        while nbytes := await keeping.scrub(333):
            taken += nbytes
        assert SCRUBBED_BYTES.rows()[()] == before + taken
        assert keeping.unscrubbed_bytes == 0
        assert taken >= sum(frame.size for frame in frames_of(1, 35))
        await journal.close()


@real_time
async def test_a_plain_checkpoint_is_passed_over_once_a_broker_has_keys(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        await written(bed, frames_of(1, 10), 8)
        expected = await reopened(bed)
        assert expected[0]
        bed.keys = Keyring("test:", bed.provider)
        assert await reopened(bed) == (False, expected[1])


@real_time
async def test_a_sealed_checkpoint_whose_key_is_gone_is_passed_over(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        bed.keys = Keyring("test:", bed.provider)
        await written(bed, frames_of(1, 10), 8)
        expected = await reopened(bed)
        assert expected[0]
        path = bed.path / "checkpoint"
        assert b"another-topic" not in path.read_bytes()
        other = Bed(tmp_path / "other")
        other.keys = Keyring("test:", bed.provider)
        bed.provider.newest["default"] = 2
        async with other:
            await written(other, frames_of(1, 10), 8)
            shutil.copy(other.path / "checkpoint", path)
        assert await reopened(bed) == (False, expected[1])


@real_time
async def test_the_scrub_goes_on_behind_what_is_dropped_meanwhile(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=900) as bed:
        await written(bed, frames_of(1, 40), 35)
        journal, heard, _ = bed.open()
        keeping = journal.keeping
        assert keeping is not None
        assert await keeping.scrub(1)
        begins = await journal.shorten_to(20, WINDOW)
        assert begins > 5
        assert keeping.unscrubbed_bytes == sum(frame.size for frame in frames_of(begins, 35))
        while await keeping.scrub(333):
            pass
        assert (keeping.unscrubbed_bytes, heard.of("replaced")) == (0, [])
        await journal.close()
