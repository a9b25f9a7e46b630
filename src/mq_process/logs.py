"""What a process writes of itself: log lines as JSON, and where every thread and task is when somebody asks."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import signal
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_STACK_TASKS_MAX = 1_000
_STACK_FRAMES_MAX = 12


class JsonLines(logging.Formatter):
    """Each record is one JSON object on one line: `ts` (RFC 3339, UTC), `level`, `logger`, `message`, `template` (the
    text before its arguments, by which lines of one kind are found), `error` if there is one, and the fields that are
    `always` there."""

    def __init__(self, always: Mapping[str, object]) -> None:
        super().__init__()
        self._always = dict(always)

    def format(self, record: logging.LogRecord) -> str:
        """The object. What is not ASCII is escaped, so no text can end the line."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "ts": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "template": str(record.msg),
            **self._always,
        }
        if record.exc_info is not None and record.exc_info[0] is not None:
            kind, error, trace = record.exc_info
            stack = "".join(traceback.format_exception(kind, error, trace))
            line["error"] = {"type": kind.__qualname__, "message": str(error), "stack": stack}
        return json.dumps(line)


def dump_stacks_when_asked(loop: asyncio.AbstractEventLoop) -> None:
    """At SIGUSR2 every thread's stack goes to standard error at once, even if the loop hangs; then every task's, once
    the loop has its turn."""
    loop.add_signal_handler(signal.SIGUSR2, _write_tasks, loop)
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=True)


def _write_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    lines = [f"{len(tasks)} tasks\n"]
    for task in tasks[:_STACK_TASKS_MAX]:
        lines.append(f"task {task.get_name()!r}\n")
        for frame in task.get_stack(limit=_STACK_FRAMES_MAX):
            code = frame.f_code
            lines.append(f"  {code.co_filename}:{frame.f_lineno} in {code.co_qualname}\n")
    if len(tasks) > _STACK_TASKS_MAX:
        lines.append(f"and {len(tasks) - _STACK_TASKS_MAX} more\n")
    sys.stderr.write("".join(lines))
    sys.stderr.flush()
