"""What brokers refuse of those who call themselves brokers: counted, and told in the log without flooding it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused

log = logging.getLogger("mq_broker.audit")

LINES_A_MINUTE_MAX: Final = 10
"""For each reason and broker. What is more is counted, and the next line says how many there were."""

_MINUTE_S: Final = 60.0
STRANGER: Final = 0
"""Whoever has proved nothing. The id that a stranger claims is no key: there would be as many as it likes."""


class Refusals:
    """Owns the counts. `clock`: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self._clock = clock
        # Since when, lines since then, left out since then
        self._lines: dict[tuple[str, int], tuple[float, int, int]] = {}

    def note(self, error: PeerRefused, broker: int = STRANGER) -> None:
        """It was refused. `broker`: who it was, if that is proved."""
        key = pb.PeerRefusal.Name(pb.PeerRefusal.ValueType(error.why)), broker
        self.counts[key] += 1
        now = self._clock()
        since, lines, left_out = self._lines.get(key, (now, 0, 0))
        if now - since >= _MINUTE_S:
            since, lines = now, 0
        if lines >= LINES_A_MINUTE_MAX:
            self._lines[key] = since, lines, left_out + 1
            return
        self._lines[key] = since, lines + 1, 0
        more = f" ({left_out} more like it before)" if left_out else ""
        who = f"broker {broker}" if broker else "somebody"
        log.warning("refused %s, %s: %s%s", who, key[0], error, more)
