"""The audit log: a line each, none forged, none waited for, a bound on all of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mq_broker.security import audit as module
from mq_broker.security.audit import LINES_A_MINUTE_MAX, Audit
from mq_broker.security.authority import Asker, Authority
from mq_broker.security.names import Principal

DEADLINE_S = 20.0


def asker(name: str = "etl") -> Asker:
    return Asker(Principal("User", name), "ipv4:127.0.0.1:1", Authority(on=True))


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_no_text_can_forge_a_line(tmp_path: Path) -> None:
    log = Audit(tmp_path / "audit.log", 7)
    log.start()
    forged = 'a"}\n{"verdict":"allowed","principal":"User:admin"}\r\u2028\x1b[31m'
    log.denied(asker(), "Fetch", "Read", forged, forged)
    log.event("start", forged)
    log.stop()
    raw = (tmp_path / "audit.log").read_bytes()
    assert raw.count(b"\n") == 2
    assert raw.isascii()
    assert b"\x1b" not in raw
    first, second = lines(tmp_path / "audit.log")
    assert (first["verdict"], first["broker"], first["resource"], first["principal"]) == (
        "denied",
        7,
        forged,
        "User:etl",
    )
    assert (first["number"], second["number"]) == (1, 2)


def test_denials_of_one_kind_are_counted_and_the_count_is_told(tmp_path: Path) -> None:
    clock = Clock()
    log = Audit(tmp_path / "audit.log", 1, clock=clock)
    log.start()
    for number in range(100):
        log.denied(asker(), "Fetch", "Read", f"topic {number}", "no right")
    log.denied(asker("ann"), "Fetch", "Read", "topic", "no right")
    log.denied(asker(), "Produce", "Write", "topic", "no right")
    for _ in range(100):
        log.allowed(asker(), "CreateTopic", "Create", "topic", often=False)
    clock.now += 61
    until(lambda: any("left_out" in line for line in lines(tmp_path / "audit.log")))
    log.denied(asker(), "Fetch", "Read", "topic again", "no right")
    log.stop()
    found = lines(tmp_path / "audit.log")
    fetched = [line for line in found if line["method"] == "Fetch" and line["principal"] == "User:etl"]
    assert [line["left_out"] for line in fetched if "left_out" in line] == [100 - LINES_A_MINUTE_MAX]
    assert len(fetched) == LINES_A_MINUTE_MAX + 2, "those of a minute, their count, and one of the next minute"
    assert sum(line["method"] == "CreateTopic" for line in found) == 100, "what changes something is always told"
    assert {line["principal"] for line in found} == {"User:etl", "User:ann"}


def test_nobody_waits_for_the_disk_and_what_is_lost_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, going_on = threading.Event(), threading.Event()
    log = Audit(tmp_path / "audit.log", 1)
    real = log._write
    monkeypatch.setattr(log, "_write", lambda told: (writing.set(), going_on.wait(DEADLINE_S), real(told)))
    log.start()
    log.allowed(asker(), "CreateTopic", "Create", "first", often=False)
    assert writing.wait(DEADLINE_S)
    for _ in range(module.QUEUE_MAX + 950):
        log.allowed(asker(), "CreateTopic", "Create", "topic", often=False)
    assert log.lost == 950
    going_on.set()
    until(lambda: log.lost == 0)
    log.stop()
    found = lines(tmp_path / "audit.log")
    assert sum(line.get("lost", 0) for line in found) == 950
    assert sum("number" in line for line in found) == module.QUEUE_MAX + 1


def test_the_file_is_turned_over_and_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE_MAX", 1)
    log = Audit(tmp_path / "audit.log", 1, file_bytes_max=1_000)
    log.start()
    for number in range(100):
        log.allowed(asker(), "CreateTopic", "Create", f"topic {number}", often=False)
    log.stop()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit.log", *(f"audit.log.{number}" for number in range(1, module.FILES_MAX))]
    assert all(path.stat().st_size <= 1_000 for path in tmp_path.iterdir())
    kept = [line["number"] for name in reversed(files) for line in lines(tmp_path / name)]
    assert kept == list(range(kept[0], 101)), "the newest, in order"


def test_a_disk_that_takes_nothing_costs_lines_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = Audit(tmp_path / "audit.log", 1)
    log.start()
    real, broken = log._open, threading.Event()

    def opened() -> int:
        if broken.is_set():
            raise OSError("no space left")
        return real()

    monkeypatch.setattr(log, "_open", opened)
    broken.set()
    log.allowed(asker(), "CreateTopic", "Create", "lost", often=False)
    until(lambda: log.lost == 1)
    log.allowed(asker(), "CreateTopic", "Create", "lost as well", often=False)
    until(lambda: log.lost == 2)
    broken.clear()
    log.allowed(asker(), "CreateTopic", "Create", "kept", often=False)
    log.stop()
    found = lines(tmp_path / "audit.log")
    assert [line["resource"] for line in found if "resource" in line] == ["kept"]
    assert sum(line.get("lost", 0) for line in found) == 2
    assert sum("cannot be written" in message for message in caplog.messages) == 1


def test_a_log_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Audit(tmp_path / "missing" / "audit.log", 1).start()
    Audit(tmp_path / "audit.log", 1).stop()  # nothing was started
