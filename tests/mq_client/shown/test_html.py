"""What notebooks show of topics, groups, moves and the cluster: tables, without any markup of a stranger's names."""

from __future__ import annotations

from html.parser import HTMLParser

import pyarrow as pa
import pytest

from mq_client import ClusterDescription, GroupDescription, PartitionDescription, PartitionMove, TopicDescription
from mq_client.shown.descriptions import BrokerDescription, GroupCursor, PartitionMoves
from mq_client.shown.html import table

HOSTILE = "<script>alert('1')</script>&\"<img src=x onerror=y>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert attrs == []

    def handle_data(self, data: str) -> None:
        self.text.append(data)


CURSOR = GroupCursor(HOSTILE, 0, 3, 8, 100, 1_500_000, 0, (HOSTILE,), HOSTILE)
SHOWN = [
    TopicDescription(
        HOSTILE,
        "id",
        pa.schema([(HOSTILE, pa.int64())]),
        typed=True,
        settings={"durability": HOSTILE},
        partitions=(PartitionDescription(0, 0, 4, (1, 2), (1,), (3,)),),
    ),
    ClusterDescription((BrokerDescription(1, HOSTILE, 7, HOSTILE, HOSTILE),), HOSTILE, 1),
    GroupDescription(HOSTILE, (CURSOR,), (HOSTILE,)),
    PartitionMoves([PartitionMove(HOSTILE, 0, (1, 2), (2, 3))]),
]


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: type(shown).__name__)
def test_names_are_text_and_never_markup(shown: TopicDescription) -> None:
    tags = Tags()
    tags.feed(shown._repr_html_())
    assert tags.seen == {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert HOSTILE in "".join(tags.text)


def test_a_group_tells_its_lag() -> None:
    html = GroupDescription("g", (CURSOR,))._repr_html_()
    assert "5 records, 100 bytes, 1.5 s behind" in html
    assert "did not answer" not in html


def test_a_cell_is_short_however_long_the_value_is() -> None:
    for value in ("x" * 10**6, b"x" * 10**6, b"\xff" * 10**6, list(range(10**6)), {"k": "x" * 10**6}, 10**4000):
        assert len(table("", ["v"], [[value]])) < 2_000
