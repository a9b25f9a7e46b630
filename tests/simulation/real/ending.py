"""How a simulated world ends: in the middle of what it does, and without a word."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from tests.simulation.real.loop import VirtualLoop


@contextlib.contextmanager
def in_silence() -> Iterator[None]:
    """What was killed is thrown away in the middle of what it did: nobody wants to hear of that."""
    hook, disabled = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        logging.disable(disabled)


def throw_away(loop: VirtualLoop, buried: Iterable[Any]) -> None:
    """Nothing of it runs any more, nor says that it was not finished. `buried`: tasks of processes that were killed."""
    loop.set_exception_handler(lambda loop, context: None)
    ended: set[Any] = set()
    asyncio.set_event_loop(loop)  # what ends may begin tasks, which would go to a loop that nobody ends
    for _ in range(5):  # one that ends may begin another
        left = {*asyncio.all_tasks(loop), *buried} - ended
        for task in sorted(left, key=hash):
            _end(task)
        ended |= left
    asyncio.set_event_loop(None)
    loop.close()


def _end(task: Any) -> None:
    task._log_destroy_pending = False
    coroutine = task.get_coro()
    frame = getattr(coroutine, "cr_frame", None)  # what closes an asynchronous generator has none
    inner = [each for each in frame.f_locals.values() if asyncio.iscoroutine(each)] if frame is not None else []
    for each in (coroutine, *inner):
        for _ in range(10):  # one that waits for something in a `finally` is told again
            try:
                each.close()
            except BaseException:  # noqa: BLE001 - what it does on the way is of no interest any more
                continue
            break
