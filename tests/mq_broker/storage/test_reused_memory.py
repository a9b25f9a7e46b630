"""Memory that sealing uses again: nobody's bytes change while he has them."""

from __future__ import annotations

import pytest

from mq_broker.storage.reused_memory import ReusedMemory


def test_a_buffer_that_came_back_is_lent_again() -> None:
    memory = ReusedMemory()
    for size in (1 << 20, 300, 1 << 19):
        with memory.lent(size) as view:
            assert len(view) == size
            view[:] = b"x" * size
    assert memory.made == 1


def test_two_at_a_time_have_two_buffers() -> None:
    memory = ReusedMemory()
    with memory.lent(10) as one, memory.lent(10) as other:
        one[:], other[:] = b"1" * 10, b"2" * 10
        assert bytes(one) == b"1" * 10


def test_a_buffer_that_somebody_still_views_is_not_lent_again() -> None:
    memory = ReusedMemory()
    with memory.lent(10) as view:
        view[:] = b"0123456789"
        kept = view[2:4]
    with memory.lent(10) as view:
        view[:] = b"x" * 10
    assert (bytes(kept), memory.made) == (b"23", 2)


def test_after_an_error_the_bytes_stay_with_its_traceback() -> None:
    memory = ReusedMemory()
    with pytest.raises(ValueError, match="of the caller"), memory.lent(10):
        raise ValueError("of the caller")
    with memory.lent(10):
        pass
    assert memory.made == 2


def test_what_is_kept_has_a_bound_in_number_and_size() -> None:
    memory = ReusedMemory(buffers_max=2, bytes_max=1 << 20)
    with memory.lent(2 << 20), memory.lent(1 << 20), memory.lent(1 << 19), memory.lent(1 << 18):
        pass
    assert memory.kept_bytes == (1 << 20) + (1 << 19)
