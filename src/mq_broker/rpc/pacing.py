"""Holds back who is above a quota: by not reading, by not sending, or by waiting before an answer.

Nothing is refused where waiting will do. Requests are: above what is paid for within a second they are `Overloaded`,
with the time after which to ask again. Acknowledgements, and what brokers ask of each other, are never held back.
"""

from __future__ import annotations

import asyncio
import logging
import math
from types import TracebackType
from typing import Final

from mq_broker.measured import QUOTA_REFUSALS, QUOTA_WAITS
from mq_broker.rpc.callers import asker
from mq_broker.security.quotas import Meter
from mq_protocol.access.quotas import Quota, limit_text, set_command
from mq_protocol.errors import Overloaded, QuotaExceeded

log = logging.getLogger(__name__)

ANSWER_WAITS_S: Final = 1.0
"""How long a request waits at most."""

LEASES_WAIT_S: Final = 1.0
"""How long what is lent waits at most between two messages: leases run out meanwhile, and outcomes are told there."""

LOOK_AGAIN_S: Final = 1.0
"""A quota may have been raised while somebody waits."""

TELL_EVERY_S: Final = 600.0
"""The log names who is held back, and by which quota, so often at most."""

CHUNK_BYTES_MIN: Final = 64 << 10


async def room(meter: Meter | None, quota: Quota, wait_max: float = math.inf) -> bool:
    """Returns once what was used is paid for, or after `wait_max` seconds: whether it is paid for."""
    if meter is None or (bucket := meter.buckets.get(quota)) is None:
        return True
    loop = asyncio.get_running_loop()
    now = loop.time()
    if bucket.delay(now) <= 0:  # nearly always
        return True
    until = now + wait_max
    while (delay := min(meter.delay(loop.time(), quota), until - loop.time())) > 0:
        _tell(meter, quota, loop.time())
        began = loop.time()
        try:
            await asyncio.sleep(min(delay, LOOK_AGAIN_S))
        finally:
            QUOTA_WAITS.add(quota, n=loop.time() - began)
    return meter.delay(loop.time(), quota) <= 0


async def room_to_send(wait_max: float = math.inf) -> bool:
    """Before records are read for whoever asks: until those that it was sent are paid for, or `wait_max` seconds are
    over. Whether they are paid for."""
    return await room(asker().meter, Quota.FETCH, wait_max)


async def room_to_lend() -> None:
    """The same of records that are lent."""
    await room_to_send(LEASES_WAIT_S)


def chunk_bytes(wanted: int) -> int:
    """How many bytes one message should have, so that whoever asks does not wait long between two of them."""
    meter = asker().meter
    bucket = None if meter is None else meter.buckets.get(Quota.FETCH)
    return wanted if bucket is None else min(wanted, max(bucket.rate, CHUNK_BYTES_MIN))


def paid_for(meter: Meter) -> bool:
    """Takes one request more if it is paid for at once, or nothing bounds it: nearly always. Else `admit_request`."""
    bucket = meter.buckets.get(Quota.REQUESTS)
    return bucket is None or bucket.reserve(asyncio.get_running_loop().time(), 0.0)[0]


async def admit_request(meter: Meter | None, method: str) -> None:
    """One request more. Raises `Overloaded` if it is not paid for within a second: nothing of it was done."""
    if meter is None:
        return
    bucket = meter.buckets.get(Quota.REQUESTS)
    if bucket is None:
        return
    now = asyncio.get_running_loop().time()
    taken, delay = bucket.reserve(now, ANSWER_WAITS_S)
    if not taken:
        _tell(meter, Quota.REQUESTS, now)
        QUOTA_REFUSALS.add(Quota.REQUESTS)
        raise overloaded(meter, Quota.REQUESTS, delay, f"{method} was not begun")
    if delay > 0:
        _tell(meter, Quota.REQUESTS, now)
        QUOTA_WAITS.add(Quota.REQUESTS, n=delay)
        await asyncio.sleep(delay)


def charge(meter: Meter | None, quota: Quota, amount: int) -> None:
    """So much was used."""
    if meter is not None and quota in meter.buckets:
        meter.charge(asyncio.get_running_loop().time(), quota, amount)


def overloaded(meter: Meter, quota: Quota, delay: float, what: str) -> Overloaded:
    limit = limit_text(quota, meter.limits[quota])
    return Overloaded(
        f"{meter.principal} is above its quota of {quota}, which is {limit} at each broker, and {what}: ask again in "
        f"{delay:.1f} s",
        retry_after_ms=math.ceil(delay * 1000),
    )


class Present:
    """Around one call of a client: its connection counts while it lasts, and its stream if it is one. Raises
    `QuotaExceeded`."""

    __slots__ = ("_connection", "_meter", "_stream")

    def __init__(self, meter: Meter | None, connection: str, *, stream: bool) -> None:
        self._meter = meter
        self._connection = connection
        self._stream = stream

    @property
    def connection(self) -> Present:
        """Of the connection alone, which may outlast the call."""
        return Present(self._meter, self._connection, stream=False)

    def is_as(self, other: Present) -> bool:
        """Both count the same for the same."""
        mine, its = (self._meter, self._connection), (other._meter, other._connection)
        return mine == its and self._stream is other._stream

    def __enter__(self) -> None:
        meter = self._meter
        if meter is None:
            return
        quota = Quota.STREAMS
        try:
            if self._stream:
                meter.check(quota, meter.streams, "streams open at this broker", "close some")
            quota = Quota.CONNECTIONS
            meter.connect(self._connection)
        except QuotaExceeded:
            QUOTA_REFUSALS.add(quota)
            raise
        meter.streams += self._stream

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._meter is not None:
            self._meter.streams -= self._stream
            self._meter.disconnect(self._connection)


def _tell(meter: Meter, quota: Quota, now: float) -> None:
    """In the log, now and then."""
    if now - meter.told.get(quota, -math.inf) >= TELL_EVERY_S:
        meter.told[quota] = now
        limit = meter.limits[quota]
        log.info(
            "%s is held back here by its quota of %s, %s; `%s` gives it more",
            meter.principal,
            quota,
            limit_text(quota, limit),
            set_command(meter.principal, quota, 2 * limit),
        )
