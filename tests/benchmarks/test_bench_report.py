"""What the benchmark prints: numbers short enough to compare, the same figures in all three forms."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from benchmarks.bench.measure import Figure, spread
from benchmarks.bench.report import as_json, markdown, number, print_figures, ratio_text

THROUGHPUT = Figure(
    "in", "publish", "MB/s", "MB/s", "higher", spread([80.0, 90.0]), "wire", spread([160.0, 180.0]), spread([0.5])
)
LATENCY = Figure("push", "to Consumer", "p99", "ms", "lower", spread([2.5]), "echo", spread([0.5]), spread([5.0]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (0.1234, "0.123"),
        (0.9999, "1.00"),
        (9.996, "10.0"),
        (12.34, "12.3"),
        (123.4, "123"),
        (999.4, "999"),
        (999.7, "1.00 k"),
        (280_123.0, "280 k"),
        (999_700.0, "1.00 M"),
        (5_321_000.0, "5.32 M"),
        (2.5e9, "2.50 G"),
    ],
)
def test_three_digits_count(value: float, text: str) -> None:
    assert number(value) == text


def test_throughput_is_a_share_and_latency_a_multiple() -> None:
    assert ratio_text(THROUGHPUT) == "50% (50% to 50%)"
    assert ratio_text(LATENCY) == "5.00x (5.00 to 5.00)"


def test_table_markdown_and_json_tell_the_same() -> None:
    printed = io.StringIO()
    print_figures(Console(file=printed, width=120), [THROUGHPUT, LATENCY], {"cores": "2"}, "a run")
    kept = markdown([THROUGHPUT, LATENCY], {"cores": "2"}, "a run")
    document = json.loads(as_json([THROUGHPUT, LATENCY], {"cores": "2"}, "a run", {"publish": [{"MB/s": 80.0}]}))
    for text in (printed.getvalue(), kept):
        assert "85.0 (80.0 to 90.0)" in text
        assert "170 (160 to 180)" in text
        assert "to Consumer, p99" in text
    assert document["figures"][0]["ours"]["median"] == 85.0
    assert document["readings"] == {"publish": [{"MB/s": 80.0}]}
    assert document["machine"] == {"cores": "2"}
