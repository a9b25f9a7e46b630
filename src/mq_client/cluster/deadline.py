"""How long a call may take, and how long to wait between attempts. Monotonic time only: the wall clock may jump."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from numbers import Real
from typing import Final

from mq_client.errors import InvalidSetting
from mq_protocol.names import parse_duration

_FIRST_MS = 20.0
_MOST_MS = 500.0

LONGEST_MS: Final = 1e11
"""Three years, which stand for ever: the platform and gRPC count no further than some hundred."""


class Deadline:
    """A moment of the monotonic clock, passed down through every call that works on one request."""

    __slots__ = ("_at", "timeout_ms")

    def __init__(self, timeout_ms: float) -> None:
        self.timeout_ms = timeout_ms
        self._at = time.monotonic() + timeout_ms / 1000

    @property
    def remaining_s(self) -> float:
        """Seconds left, 0 once past."""
        return max(0.0, self._at - time.monotonic())

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._at

    def pause(self, seconds: float) -> None:
        """Wait that long, but not past the deadline."""
        time.sleep(min(seconds, self.remaining_s))

    def at_most(self, timeout_ms: float) -> Deadline:
        """This one, or the one `timeout_ms` from now if that comes first."""
        return self if self.remaining_s * 1000 <= timeout_ms else Deadline(timeout_ms)


class Backoff:
    """Waits between attempts: from 20 ms doubling to half a second, each cut by up to half at random so that clients
    spread out."""

    def __init__(self, random_: random.Random | None = None) -> None:
        self._random = random_ or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._next_ms = _FIRST_MS

    def next_ms(self) -> float:
        """How long to wait before the next attempt."""
        wait_ms = self._next_ms * (0.5 + self._random.random() / 2)
        self._next_ms = min(self._next_ms * 2, _MOST_MS)
        return wait_ms

    def reset(self) -> None:
        self._next_ms = _FIRST_MS

    def sleep(self, deadline: Deadline) -> None:
        """Wait, but not past the deadline."""
        time.sleep(min(self.next_ms() / 1000, deadline.remaining_s))


def attempts(deadline: Deadline) -> Iterator[int]:
    """Numbers of attempts from 0 on, with a wait before each but the first (`Backoff`). The first is always made. They
    end once an attempt is over and the deadline has passed: what follows the loop says what was not had."""
    backoff = Backoff()
    number = 0
    yield number
    while not deadline.expired:
        backoff.sleep(deadline)
        number += 1
        yield number


def a_number(name: str, value: object) -> float:
    """Milliseconds as they are. Raises `InvalidSetting` for anything but a number: settings of topics and queues may be
    text such as "5m", arguments of this client are numbers."""
    if not isinstance(value, bool) and isinstance(value, Real):
        return float(value)
    hint = "give milliseconds as a number, such as 5000"
    if isinstance(value, str):
        with suppress(ValueError):
            hint = f"give milliseconds as a number: {name}={parse_duration(value)}"
    raise InvalidSetting(f"{name}={value!r} is no number: {hint}")


def positive_ms(name: str, value: float) -> float:
    """The value, infinity cut to what can be waited for. Raises `InvalidSetting` unless it is a positive number of
    milliseconds."""
    if not a_number(name, value) > 0:
        raise InvalidSetting(f"{name}={value} must be a positive number of milliseconds")
    return min(value, LONGEST_MS)
