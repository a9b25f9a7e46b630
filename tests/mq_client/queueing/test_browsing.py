"""Looking into a queue: what is asked for, and no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq_client.queueing.browsing import _cut


@pytest.mark.parametrize(
    ("count", "wanted"), [(1, [(3, 4)]), (4, [(3, 7)]), (5, [(3, 7), (9, 10)]), (6, [(3, 7), (9, 11)])]
)
def test_no_more_is_read_and_no_further_range_asked_for_than_is_wanted(
    count: int, wanted: list[tuple[int, int]]
) -> None:
    def ranges() -> Iterator[tuple[int, int]]:
        yield 3, 7
        yield 9, 11
        raise AssertionError("a leader is asked although there is enough")

    assert list(_cut(ranges(), count)) == wanted
    assert list(_cut(iter([(3, 7)]), 9)) == [(3, 7)]
