"""Text from outside on a terminal and in a log: what is not seen is an escape, and a record is one line."""

from __future__ import annotations

import io
import json
import logging

import pytest

from mq_cli.terminal import LINES, OneLine, log_to_stderr, printable, printable_bytes, printable_json

EVIL = "a\nb\r\x1b[2J\x9b31m\u202e\u200b\u2028\ud800\x7f"


def test_what_is_not_seen_is_written_as_an_escape() -> None:
    assert printable(EVIL) == r"a\nb\r\x1b[2J\x9b31m\u202e\u200b\u2028\ud800\x7f"
    assert printable("a\nb\tc\x1b", LINES) == "a\nb\tc\\x1b"
    assert printable("größe 話題 \U0001f600") == "größe 話題 \U0001f600"


def test_bytes_keep_their_lines_and_nothing_that_commands() -> None:
    assert printable_bytes(b"a\n\tb\x1b[2J\xff\xc2\x9b31m\r") == rb"a" + b"\n\t" + rb"b\x1b[2J\xff\x9b31m\r"
    assert printable_bytes("größe".encode()) == "größe".encode()


def test_json_means_what_it_meant() -> None:
    document = {"a": EVIL.replace("\ud800", ""), "b": "\U000e0001 話"}
    shown = printable_json(json.dumps(document, ensure_ascii=False))
    assert json.loads(shown) == document
    assert shown.isprintable()


def _logged(message: str, *arguments: object, error: Exception | None = None) -> list[str]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(OneLine("%(levelname)s %(name)s: %(message)s"))
    told = None if error is None else (type(error), error, error.__traceback__)
    handler.emit(logging.LogRecord("l", logging.ERROR, "file", 1, message, arguments, told))
    return out.getvalue().split("\n")[:-1]


@pytest.mark.parametrize("text", [EVIL, "x\nERROR l: all is lost", "x\u2028ERROR", "x\rERROR"])
def test_no_text_forges_a_line_of_the_log(text: str) -> None:
    [line] = _logged("query %s", text)
    assert line.startswith("ERROR l: query ")
    assert line.isprintable()


def test_the_text_of_an_error_forges_no_line_in_its_traceback() -> None:
    try:
        raise ValueError("x\nERROR l: all is lost\x1b")
    except ValueError as error:
        first, *rest = _logged("it failed", error=error)
    assert first == "ERROR l: it failed"
    assert len(rest) > 3
    assert all(line.startswith("  | ") and line.isprintable() for line in rest)


def test_a_line_of_the_log_has_its_date_and_its_time_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[logging.Handler] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **options: handlers.extend(options["handlers"]))
    log_to_stderr("info")
    record = logging.LogRecord("l", logging.INFO, "file", 1, "started", (), None)
    record.created, record.msecs = 1_700_000_000.123, 123.0
    assert handlers[0].format(record) == "2023-11-14T22:13:20.123Z INFO    l: started"
