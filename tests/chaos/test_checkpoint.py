"""A checkpoint's logs as micro-batches."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.checkpoint import MicroBatch, micro_batches


def test_each_micro_batch_begins_where_the_one_before_ended_and_is_committed_if_spark_says_so(tmp_path: Path) -> None:
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    for number, end in enumerate((0, 10, 15)):
        (tmp_path / "offsets" / f"{number}").write_text(
            f'v1\n{{"batchWatermarkMs":0}}\n{{"in":{{"0":{end},"1":{2 * end}}}}}'
        )
        (tmp_path / "offsets" / f".{number}.crc").write_bytes(b"x")
    for number in (0, 1):
        (tmp_path / "commits" / f"{number}").write_text("v1\n{}")
    assert list(micro_batches(tmp_path, "in")) == [
        MicroBatch(0, {0: 0, 1: 0}, {0: 0, 1: 0}, True),
        MicroBatch(1, {0: 0, 1: 0}, {0: 10, 1: 20}, True),
        MicroBatch(2, {0: 10, 1: 20}, {0: 15, 1: 30}, False),
    ]
