"""Tables, JSON and progress: what a terminal shows, and what a pipe is spared."""

from __future__ import annotations

import contextlib
import json
import os
import sys

import click
import pytest

from mq_cli import output, values


def read_to_the_end(terminal: int) -> str:
    """What was written to a terminal that nobody writes to any more. It comes piece by piece, with an error behind."""
    shown = b""
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 1 << 16):
            shown += piece
    return shown.decode()


@pytest.mark.parametrize("text", ["3s", "soon", "", "nan"])
def test_what_is_no_number_of_seconds_is_told_how_to_write_one(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no number of seconds: write 90"):
        values.Seconds(min=0).convert(text, None, None)
    assert values.Seconds(min=0).convert("2.5", None, None) == 2.5


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        for total in (None, 2_000):
            with output.counting(show=True, total=total) as progress:
                progress(1_000)
                progress(2_000)
    shown = read_to_the_end(ours)
    os.close(ours)
    assert "2,000 messages" in shown
    assert "/s" in shown


def test_a_table_in_a_pipe_is_lines_of_cells_between_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 250
    output.write_table(["name", "#count", "in sync"], [(long, 1, "1 2"), ("[bold]not markup[/bold]\t", 22, "")])
    assert capsys.readouterr().out == f"name\tcount\tin sync\n{long}\t1\t1 2\n[bold]not markup[/bold]\\t\t22\t\n"


def test_one_list_of_columns_makes_the_table_and_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    Column = output.Column  # noqa: N806 - a class
    columns = (
        *output.both("#number"),
        Column("size", "#bytes", text=output.bytes_text),
        *output.json_only("id"),
        Column("", "has", "parts", text=len),
        Column("parts", "parts"),
        Column("leader", "leader", lambda row: row["by"] or None),
        Column("good", "good"),
    )
    rows = [{"number": 7, "size": 2048, "id": "x", "parts": (1, 2), "by": 0, "good": False}]
    output.show(rows, columns, as_json=False)
    assert capsys.readouterr().out == ("number\tbytes\thas\tparts\tleader\tgood\n7\t2.0 KiB\t2\t1 2\tnone\tno\n")
    output.show(rows, columns, as_json=True)
    [shown] = json.loads(capsys.readouterr().out)
    assert list(shown.items()) == [
        ("number", 7), ("size", 2048), ("id", "x"), ("parts", [1, 2]), ("leader", None), ("good", False)
    ]  # fmt: skip


def test_nobody_to_ask_is_a_refusal_and_an_answer_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    output.confirm("Delete it?", yes=True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(click.ClickException, match="give --yes"):
        output.confirm("Delete it?", yes=False)
    for answer in (True, False):
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(click, "confirm", lambda *_, answer=answer, **__: answer)
        if answer:
            output.confirm("Delete it?", yes=False)
        else:
            with pytest.raises(click.ClickException, match="nothing was done"):
                output.confirm("Delete it?", yes=False)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_bytes_are_told_in_the_unit_that_fits(count: int, text: str) -> None:
    assert output.bytes_text(count) == text


def test_times_are_told_in_utc() -> None:
    assert output.time_text(1_700_000_000_123_456) == "2023-11-14T22:13:20.123Z"
    assert output.time_text(0) == ""


@pytest.mark.parametrize(("count", "text"), [(0, "0 messages"), (1, "1 message"), (12_345, "12,345 messages")])
def test_things_are_counted(count: int, text: str) -> None:
    assert output.counted(count, "message") == text


def test_names_from_outside_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "x\x1b[2J\x9b31m\u202e\ny"
    output.write_table(["name"], [(evil,)])
    output.write(evil)
    output.say(evil)
    written, said = capsys.readouterr()
    assert written.splitlines()[1].rstrip() == r"x\x1b[2J\x9b31m\u202e\ny"
    assert written.splitlines()[2:] == said.splitlines() == [r"x\x1b[2J\x9b31m\u202e", "y"]
    output.write_json([{"name": evil}])
    document = capsys.readouterr().out
    assert json.loads(document) == [{"name": evil}]
    assert all(line.isprintable() for line in document.split("\n"))
