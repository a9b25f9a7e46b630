"""How `tritonmq produce` reads its input; what it sends is shown on a real broker, in tests/cluster/test_command_line.py."""

from __future__ import annotations

import gzip
import io

import pytest

from mq_cli import produce
from mq_cli.acknowledged import Ledger

LINES = b"".join(b"line %d\n" % number for number in range(50_000))


def blocks(stream: io.BufferedIOBase, ledger: Ledger | None = None) -> list[bytes]:
    return [line for block in produce._blocks(stream, ledger or Ledger()) for line in block]  # type: ignore[arg-type]


def gunzipped(data: bytes) -> io.BufferedIOBase:
    return io.BufferedReader(produce._Gzipped(io.BytesIO(data)), produce.READ_BYTES)


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n\nb", LINES, b"x" * 3_000_000 + b"\nend"])
def test_lines_are_what_is_between_line_ends(text: bytes) -> None:
    expected = text.removesuffix(b"\n").split(b"\n") if text else []
    assert blocks(io.BytesIO(text)) == expected
    assert blocks(gunzipped(gzip.compress(text))) == expected


@pytest.mark.parametrize("data", [LINES, gzip.compress(LINES)[:-20]], ids=["plain text", "cut off"])
def test_input_that_is_not_or_not_all_of_gzip_is_refused(data: bytes) -> None:
    ledger = Ledger()
    with pytest.raises(produce._BadInput, match="not, or not all, of gzip"):
        blocks(gunzipped(data), ledger)
    assert ledger.line == 1, "no line was taken from the ledger here: it is the next one that cannot be read"


def test_a_line_without_end_is_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "LINE_BYTES_MAX", 1 << 20)
    ledger = Ledger()
    with pytest.raises(produce._BadInput, match="longer than 1 MiB"):
        blocks(io.BytesIO(b"x" * (3 << 20)), ledger)
    assert ledger.line == 1
