"""What a broker logs can be changed while it runs, for a while."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from typing import Final

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest

log = logging.getLogger(__name__)

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
SECONDS_MAX: Final = 86_400
DEFAULT_S: Final = 600
_LOGGER: Final = re.compile(r"(mq_broker|mq_cli|mq_process)(\.[a-z_]{1,64}){0,8}")


class LogLevels:
    """Owns the levels that were changed, and when each goes back by itself."""

    def __init__(self) -> None:
        self._back: dict[str, tuple[int, asyncio.TimerHandle]] = {}

    async def set_log_level(self, request: pb.SetLogLevelRequest, _deadline: float) -> pb.SetLogLevelResponse:
        """Raises `InvalidRequest` for a level or a logger that a broker does not have."""
        name = request.logger or "mq_broker"
        if request.level not in LEVELS:
            raise InvalidRequest(f"level {request.level[:20]!r} is not known: give one of {', '.join(LEVELS)}")
        if name not in logging.root.manager.loggerDict or not _LOGGER.fullmatch(name):
            raise InvalidRequest(f"a broker has no logger {name[:200]!r}: give e.g. mq_broker.rpc")
        if request.seconds > SECONDS_MAX:
            raise InvalidRequest(f"{request.seconds} seconds are too long: a level goes back after a day at most")
        logger, seconds = logging.getLogger(name), request.seconds or DEFAULT_S
        before = logger.level
        if name in self._back:
            before, timer = self._back.pop(name)
            timer.cancel()
        logger.setLevel(request.level)
        self._back[name] = before, asyncio.get_running_loop().call_later(seconds, self._go_back, name)
        log.warning("%s is logged from %s on for the next %d s, as was asked for", name, request.level, seconds)
        return pb.SetLogLevelResponse(seconds=seconds)

    async def log_levels(self, _request: pb.LogLevelsRequest, _deadline: float) -> pb.LogLevelsResponse:
        now = asyncio.get_running_loop().time()
        levels = [
            pb.LogLevel(
                logger=name,
                level=logging.getLevelName(logging.getLogger(name).level),
                seconds=max(0, math.ceil(timer.when() - now)),
            )
            for name, (_, timer) in sorted(self._back.items())
        ]
        return pb.LogLevelsResponse(levels=levels)

    def _go_back(self, name: str) -> None:
        before, _ = self._back.pop(name)
        logging.getLogger(name).setLevel(before)
        log.warning("%s is logged as before", name)

    def close(self) -> None:
        """All as it was: another broker of this process is not asked to go on like this."""
        for name in list(self._back):
            self._back[name][1].cancel()
            self._go_back(name)
