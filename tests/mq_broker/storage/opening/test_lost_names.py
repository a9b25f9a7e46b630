"""Where there is no telling which log lies there it is another one, with what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coroutines import real_time
from tests.mq_broker.storage.bed import PLACE, Bed, joined
from tests.mq_broker.storage.opening.test_quarantine import (
    ALL,
    FRAMES,
    data_directory,
    killed_at_every_step,
    name_in,
    nine_entries,
)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b'{"format": 1}', b'{"format": "1"}'])
@real_time
async def test_a_log_that_lost_its_name_is_another_one_with_what_it_holds(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        former = await nine_entries(bed)
        if content is None:
            (bed.path / "log.json").unlink()
        else:
            (bed.path / "log.json").write_bytes(content)
        journal, _, opened = bed.open()
        assert journal.log_id != former
        assert name_in(bed) == journal.log_id
        assert (joined(journal.read(1, 9, ALL)), opened.recovery) == (joined(FRAMES), 0)
        assert "log.json is" in opened.damaged
        (told,) = [each.message for each in caplog.records if each.levelname == "ERROR"]
        assert "under a new id with the entries that it has" in told
        asides = list(bed.path.glob("aside-*"))
        assert [(each / "log.json").read_bytes() for each in asides] == ([] if content is None else [content])
        await journal.close()
        again, _, opened = bed.open()
        assert (again.log_id, opened.damaged) == (journal.log_id, "")
        await again.close()


@real_time
async def test_a_log_that_lost_its_name_is_never_its_former_self_wherever_a_start_is_killed(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        former = await nine_entries(bed)
        (bed.path / "log.json").write_bytes(b"{")

        def check(step: int, done: bool) -> None:
            journal, _, _ = bed.open()
            assert joined(journal.read(1, 9, ALL)) == joined(FRAMES), f"step {step}"
            assert journal.log_id != former
            assert [path.read_bytes() for path in bed.path.glob("aside-*/log.json")] == [b"{"]

        assert killed_at_every_step(bed, bed.open, check) > 4


@real_time
async def test_a_log_that_lost_its_name_can_be_replaced_while_the_broker_runs(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        await nine_entries(bed)
        (bed.path / "log.json").write_bytes(b"{")
        directory = data_directory(bed)
        assert directory.start_over(PLACE, "fsync", "flights", 6) == bed.path / "aside-1"
        directory.close()
        journal, _, opened = bed.open()
        assert (journal.last_index, opened.recovery, opened.damaged) == (0, 6, "")
        await journal.close()
