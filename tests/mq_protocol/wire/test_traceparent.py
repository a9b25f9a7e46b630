"""A span's name in a batch's header and in a record's: what is one, and what strangers may write in its place."""

from __future__ import annotations

import pytest

from mq_protocol.errors import InvalidRequest
from mq_protocol.wire.traceparent import BYTES, TraceParent, from_bytes, from_text

TEXT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"  # the example of the standard
PARENT = TraceParent(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, 1)


def test_text_and_bytes_name_the_same_span() -> None:
    assert from_text(TEXT) == PARENT
    assert str(PARENT).encode() == TEXT
    assert len(bytes(PARENT)) == BYTES
    assert from_bytes(bytes(PARENT)) == PARENT


def test_it_says_whether_spans_are_recorded() -> None:
    flags = {b"00": False, b"01": True, b"02": False, b"03": True, b"ff": True}
    for each, sampled in flags.items():
        found = from_text(TEXT[:-2] + each)
        assert found is not None
        assert found.sampled is sampled
        assert from_bytes(bytes(found)).sampled is sampled


def test_of_a_later_version_what_follows_is_not_looked_at() -> None:
    assert from_text(b"cc" + TEXT[2:] + b"-what-will-come") == PARENT
    assert from_text(b"cc" + TEXT[2:]) == PARENT


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        TEXT[:-1],
        TEXT + b"0",
        TEXT + b"-more",  # version 00 has an end
        b"ff" + TEXT[2:],
        TEXT.upper(),
        TEXT.replace(b"-", b"_"),
        b" " + TEXT,
        TEXT + b"\n",
        b"00-" + b"0" * 32 + TEXT[35:],
        TEXT[:36] + b"0" * 16 + b"-01",
        b"cc" + TEXT[2:] + b"." + b"x",
        b"cc" + TEXT[2:] + b"-" + b"x" * 10_000,
        b"\xff" * 55,
        b"00-" + "٤".encode() * 16 + TEXT[35:],  # a digit, and none of ours
    ],
)
def test_any_other_text_counts_as_none(text: bytes | None) -> None:
    assert from_text(text) is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "this one has 0"),
        (bytes(24), "this one has 24"),
        (bytes(26), "this one has 26"),
        (b"x" * 10_000, "this one has 10000"),
        (bytes(16) + b"x" * 9, "no trace or no span"),
        (b"x" * 16 + bytes(8) + b"\x01", "no trace or no span"),
    ],
)
def test_other_bytes_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        from_bytes(data)
