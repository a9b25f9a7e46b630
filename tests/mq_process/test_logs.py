"""Log lines as JSON, and stacks for whoever asks."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from datetime import datetime
from typing import Any

from mq_process.logs import JsonLines


def line(message: str, *arguments: object, error: bool = False) -> dict[str, Any]:
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        info = sys.exc_info() if error else None
    record = logging.LogRecord("mq_broker.x", logging.WARNING, "x.py", 1, message, arguments, info)
    text = JsonLines({"broker": 3}).format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_record_is_one_object_with_its_words_and_the_text_before_its_arguments() -> None:
    told = line("%s is %d", "a\n\u2028b", 7)
    at = datetime.fromisoformat(told.pop("ts"))
    assert at.utcoffset() is not None
    assert told == {
        "level": "WARNING", "logger": "mq_broker.x", "message": "a\n\u2028b is 7", "template": "%s is %d", "broker": 3
    }  # fmt: skip


def test_an_error_is_told_with_its_type_words_and_stack() -> None:
    error = line("failed", error=True)["error"]
    assert (error["type"], error["message"]) == ("ValueError", "bad\nthing")
    assert "test_logs.py" in error["stack"]


HANGS = """
import asyncio, sys, time
from mq_process.logs import dump_stacks_when_asked

async def waits_for_a_sign():
    await asyncio.sleep(1000)

async def main():
    dump_stacks_when_asked(asyncio.get_running_loop())
    task = asyncio.create_task(waits_for_a_sign(), name="the one that waits")
    await asyncio.sleep(0)
    print("hangs", flush=True)
    sys.stdin.readline()  # the loop hangs in here
    print("goes on", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_a_process_whose_loop_hangs_says_where_and_its_tasks_once_it_goes_on() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline() == "hangs\n"
        os.kill(process.pid, signal.SIGUSR2)
        threads = [process.stderr.readline()]
        while "in main" not in threads[-1]:  # while it hangs
            threads.append(process.stderr.readline())
        process.stdin.write("\n")
        process.stdin.flush()
        tasks = [process.stderr.readline()]
        while "waits_for_a_sign" not in tasks[-1]:
            tasks.append(process.stderr.readline())
        assert any("the one that waits" in each for each in tasks)
    finally:
        process.kill()
        process.communicate()
