"""Who fails to prove a name often: addresses, and when. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

FAILURES: Final = 10
WITHIN_S: Final = 10.0
DELAY_S: Final = 1.0
ADDRESSES_MAX: Final = 4_096
"""The one that has not failed for longest is forgotten first."""


class Failures:
    """Owns the times of the last failures of each address."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def delay(self, address: str, now: float) -> float:
        """Note a failure. For how many seconds its answer is to wait: 0 for the first `FAILURES` within `WITHIN_S`."""
        times = self._times.get(address)
        if times is None:
            if len(self._times) >= ADDRESSES_MAX:
                self._times.popitem(last=False)
            times = self._times[address] = deque(maxlen=FAILURES)
        self._times.move_to_end(address)
        often = len(times) == FAILURES and now - times[0] < WITHIN_S
        times.append(now)
        return DELAY_S if often else 0.0


def host_of(peer: str) -> str:
    """The address in `Call.peer()`, such as `ipv4:127.0.0.1:40000`: its port is another each time."""
    return peer.rpartition(":")[0]
