"""Who asks: known to all that a request sets going, without being passed from hand to hand.

Until clients have names it is their connection.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from grpc import aio

_caller: Final[ContextVar[str]] = ContextVar("caller", default="")


def caller() -> str:
    """Whose request is being answered in this task; empty where it is nobody's."""
    return _caller.get()


def note_caller(context: aio.ServicerContext[Any, Any]) -> None:
    """For the task that answers this call, and all that it starts."""
    _caller.set(context.peer())
