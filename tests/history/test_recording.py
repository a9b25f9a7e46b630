"""What is recorded is read again; a killed process costs its last line at most; the command judges what was saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.__main__ import main
from tests.history.recording import HistoryError, Recorder, merge, read


def record(path: Path, process: str, partition: int) -> None:
    with Recorder(path, process) as recorder:
        number = recorder.invoke("t", partition, [f"{process}-a"])
        recorder.write("send", state="ok", id=number, offsets=[0])


def test_files_of_several_processes_become_one_history_in_order_of_time(tmp_path: Path) -> None:
    record(tmp_path / "p", "p", 0)
    record(tmp_path / "q", "q", 1)
    assert merge([tmp_path / "q", tmp_path / "p"], tmp_path / "all") == 4
    lines = list(read(tmp_path / "all"))
    assert [line["process"] for line in lines] == ["p", "p", "q", "q"]
    assert [line["state"] for line in lines] == ["invoke", "ok"] * 2


def test_a_last_line_that_was_cut_off_is_left_out_and_any_other_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "p"
    record(path, "p", 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert len(list(read(path))) == 1
    path.write_bytes(whole[:20] + b"\n" + whole)
    with pytest.raises(HistoryError, match=r"p:1 is no line of a history"):
        list(read(path))
    path.write_bytes(b"[1]\n")
    with pytest.raises(HistoryError, match="no op"):
        list(read(path))


def test_the_command_says_what_is_in_a_file_and_ends_accordingly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history"
    record(path, "p", 0)
    assert main([str(path)]) == 1
    assert "unseen: 1\n    'p-a' was acknowledged to p#1 at t-0 offset 0 (the end is 0)" in capsys.readouterr().out
    with Recorder(path, "r") as recorder:
        recorder.write("poll", topic="t", partition=0, offsets=[0], values=["p-a"])
    assert main([str(path)]) == 0
    assert "no anomaly" in capsys.readouterr().out
    assert main([str(tmp_path / "none"), str(path)]) == 2
    assert "cannot read" in capsys.readouterr().err
