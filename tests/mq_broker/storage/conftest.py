"""Tests of journals run twice where they do not look at the bytes of a segment themselves: plain, and sealed. A sealed
journal that was there before is not read from its beginning, but gone on with from a checkpoint, and the rest scrubbed.
What is damaged comes to the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mq_broker.storage.bed import checkpointed_by_default, sealed_by_default

CHECKPOINTED = (
    "test_recovery",
    "test_shortening",
    "test_quarantine",
    "test_lost_names",
    "test_journal",
)
BOTH = ("test_writer", *CHECKPOINTED)

LOOK_AT_BYTES = frozenset(
    {
        "test_a_bad_frame_in_any_segment_but_the_last_is_damage",
        "test_a_bad_last_frame_is_damage_if_it_was_flushed",
        "test_a_damaged_snapshot_takes_the_log_with_it",
        "test_a_disk_without_room_for_the_repair_does_not_open_and_goes_on_once_there_is",
        "test_a_failed_fsync_is_never_acknowledged_and_gives_the_log_a_new_id",
        "test_a_file_that_may_not_grow_is_a_full_disk",
        "test_a_flipped_byte_anywhere_in_the_middle_is_damage_and_all_from_there_on_is_put_aside",
        "test_a_frame_of_a_newer_version_behind_damage_is_not_cut_as_a_torn_tail",
        "test_a_full_disk_refuses_what_does_not_fit_and_takes_more_when_there_is_room",
        "test_a_journal_that_a_newer_version_wrote_is_refused_and_nothing_of_it_is_touched",
        "test_a_log_stopped_cleanly_has_no_torn_tail",
        "test_a_missing_segment_is_damage",
        "test_a_reboot_may_leave_holes_in_what_os_never_synced_but_not_below_the_mark",
        "test_a_repair_that_is_killed_is_finished_at_the_next_start",
        "test_a_tail_torn_at_any_byte_of_the_last_frame_is_cut",
        "test_bytes_that_were_never_frames_are_cut",
        "test_damage_after_a_snapshot_leaves_the_snapshot_and_what_is_good",
        "test_damage_in_what_is_dropped_is_told_and_goes_into_no_snapshot",
        "test_damage_is_never_served_and_gives_the_log_a_new_id",
        "test_entries_out_of_order_are_cut_above_the_mark_and_damage_below_it",
        "test_more_parts_than_one_write_takes",
        "test_recovery_equals_a_model_under_random_cuts",
        "test_short_writes_are_continued",
        "test_starting_over_that_fails_can_be_repeated_and_fills_one_directory",
    }
)
"""They know where in a plain file an entry lies. What they say of sealed ones is in test_sealed_journals.py."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module.__name__.rpartition(".")[2]
    if module not in BOTH:
        return
    looks, checkpointed = metafunc.function.__name__ in LOOK_AT_BYTES, module in CHECKPOINTED
    ways = [(False, False), (not looks, checkpointed)]
    metafunc.parametrize(
        ("sealing", "checkpointing"), ways if ways[0] != ways[1] else ways[:1], ids=_way, indirect=True
    )


def _way(value: object) -> str:
    return "yes" if value else "no"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is kept in memory has no files to seal."""
    items[:] = [item for item in items if not _is_twice_in_memory(item)]


def _is_twice_in_memory(item: pytest.Item) -> bool:
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return params.get("durability") == "memory" and bool(params.get("sealing"))


@pytest.fixture(autouse=True)
def checkpointing(request: pytest.FixtureRequest) -> Iterator[None]:
    token = checkpointed_by_default.set(getattr(request, "param", False))
    yield
    checkpointed_by_default.reset(token)


@pytest.fixture(autouse=True)
def sealing(request: pytest.FixtureRequest) -> Iterator[None]:
    token = sealed_by_default.set(getattr(request, "param", False))
    yield
    sealed_by_default.reset(token)
