"""Quotas in force: how much each principal may use of this broker, and what it uses now. Pure: time is an argument, in
seconds of a clock that only goes forward.

Whoever is above a rate waits until what was used is paid for. So it has its rate in the long run, however large a
message is, and however many streams share it. Whoever has used nothing for a second may use a second's worth at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from mq_broker.security.names import Principal, kind_of_kept
from mq_protocol.access.quotas import EVERYBODY, RATES, UNLIMITED, Quota, check_limit, parse_quota, set_command
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, QuotaExceeded, TritonMQError, shortened
from mq_protocol.names import quoted

BURST_S: Final = 1.0

METERS_MIN: Final = 1_000
"""Principals that are kept without a look at which of them have gone."""

Limits = Mapping[str, Mapping[Quota, int]]
"""What was set, by principal; that of `EVERYBODY` holds for whom nothing is set."""


class Bucket:
    """A rate, and when what was used of it is paid for."""

    __slots__ = ("_paid_at", "rate")

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._paid_at = float("-inf")

    def take(self, now: float, amount: int) -> None:
        """So much was used."""
        self._paid_at = max(self._paid_at, now - BURST_S) + amount / self.rate

    def delay(self, now: float) -> float:
        """Seconds until all that was used is paid for; 0 if it is."""
        return max(0.0, self._paid_at - now)

    def reserve(self, now: float, wait_max: float) -> tuple[bool, float]:
        """Whether one more is taken, which it is if it is paid for within `wait_max`; and the seconds until then."""
        delay = max(self._paid_at, now - BURST_S) + 1 / self.rate - now
        if delay > wait_max:
            return False, delay
        self.take(now, 1)
        return True, max(0.0, delay)

    def change(self, now: float, rate: int) -> None:
        """Another rate from now on. What is not paid for yet is paid at the new one."""
        if self._paid_at > now:
            self._paid_at = now + (self._paid_at - now) * self.rate / rate
        self.rate = rate

    def is_idle(self, now: float) -> bool:
        """Whether it is as a new one."""
        return self._paid_at <= now - BURST_S


class Meter:
    """What one principal uses of this broker. `connections`: how many calls each has under way."""

    __slots__ = ("buckets", "connections", "limits", "principal", "streams", "told")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.limits: dict[Quota, int] = {}
        self.buckets: dict[Quota, Bucket] = {}
        self.connections: dict[str, int] = {}
        self.streams = 0
        self.told: dict[Quota, float] = {}  # when the log last said that it is held back

    def limit(self, now: float, limits: Mapping[Quota, int]) -> None:
        """These hold from now on."""
        self.limits = dict(limits)
        for quota in RATES:
            rate = limits.get(quota)
            if rate is None:
                self.buckets.pop(quota, None)
            elif quota in self.buckets:
                self.buckets[quota].change(now, rate)
            else:
                self.buckets[quota] = Bucket(rate)

    def charge(self, now: float, quota: Quota, amount: int) -> None:
        bucket = self.buckets.get(quota)
        if bucket is not None:
            bucket.take(now, amount)

    def delay(self, now: float, quota: Quota) -> float:
        """Seconds until what was used is paid for."""
        bucket = self.buckets.get(quota)
        return 0.0 if bucket is None else bucket.delay(now)

    def connect(self, connection: str) -> None:
        """A call is under way on that connection; `disconnect` is to follow. Raises `QuotaExceeded`."""
        if connection not in self.connections:
            self.check(Quota.CONNECTIONS, len(self.connections), "connections in use at this broker", "close some")
        self.connections[connection] = self.connections.get(connection, 0) + 1

    def disconnect(self, connection: str) -> None:
        self.connections[connection] -= 1
        if not self.connections[connection]:
            del self.connections[connection]

    def check(self, quota: Quota, has: int, what: str, advice: str, more: int = 1) -> None:
        """Raises `QuotaExceeded` if `more` of that is too much for who has so many."""
        limit = self.limits.get(quota)
        if limit is not None and has + more > limit:
            raise exceeded(self.principal, quota, limit, has, more, what, advice)

    def is_idle(self, now: float) -> bool:
        """Whether a new one would be the same."""
        return not self.connections and not self.streams and all(each.is_idle(now) for each in self.buckets.values())


def exceeded(principal: str, quota: Quota, limit: int, has: int, more: int, what: str, advice: str) -> QuotaExceeded:
    asked = f", and {more:,} more are asked for" if more > 1 else ""
    return QuotaExceeded(
        f"{principal} has {has:,} {what}{asked}, and its quota of {quota} allows {limit:,}: {advice}, or ask an "
        f"administrator for more: `{set_command(principal, quota, max(2 * limit, has + more))}`"
    )


class Quotas:
    """Owns what was set, and a meter for each principal that is here. `defaults` hold for everybody where nothing is
    set."""

    def __init__(self, defaults: Mapping[Quota, int] | None = None) -> None:
        self.version = -1
        self.defaults: Mapping[Quota, int] = dict(defaults or {})
        self.limits: Limits = {}
        self._meters: dict[str, Meter] = {}
        self._look_at = METERS_MIN

    def take(self, now: float, version: int, limits: Limits) -> None:
        """These are in force from now on, for those who are here as well. `version`: of the documents that they were
        read from."""
        self.version, self.limits = version, limits
        for principal, meter in self._meters.items():
            meter.limit(now, dict(self.of(principal)))

    def of(self, principal: str) -> Iterator[tuple[Quota, int]]:
        """The limits of that principal; none for what is unlimited. Each quota by itself is its own, or that of
        everybody, or the default."""
        mine, all_ = self.limits.get(principal, {}), self.limits.get(EVERYBODY, {})
        for quota in Quota:
            limit = mine.get(quota, all_.get(quota, self.defaults.get(quota, UNLIMITED)))
            if limit != UNLIMITED:
                yield quota, limit

    def limit_of(self, principal: str, quota: Quota) -> int | None:
        return dict(self.of(principal)).get(quota)

    def meter_of(self, principal: str) -> Meter | None:
        """The one of that principal, if it is here."""
        return self._meters.get(principal)

    def meter(self, now: float, principal: str) -> Meter:
        """The one of that principal. Meters of those who have gone, and whose use is paid for, are dropped."""
        meter = self._meters.get(principal)
        if meter is None:
            if len(self._meters) >= self._look_at:
                self._meters = {who: each for who, each in self._meters.items() if not each.is_idle(now)}
                self._look_at = max(METERS_MIN, 2 * len(self._meters))
            meter = self._meters[principal] = Meter(principal)
            meter.limit(now, dict(self.of(principal)))
        return meter


DOCUMENT: Final = "quotas"
"""The coordination service keeps one document, `{"quotas": {principal: {quota: limit}}}`. A quota or a key that this
version does not know is kept by every write: a newer broker goes by it."""

_QUOTAS: Final = "quotas"
_NAMES: Final = frozenset(map(str, Quota))
_ERROR_BYTES_MAX: Final = 500


def load(data: bytes) -> Limits:
    """What was set, as far as this version knows it. Raises `CoordinationUnavailable`, which says what is wrong with
    the document."""
    found: dict[str, dict[Quota, int]] = {}
    for principal, limits in _read(data)[_QUOTAS].items():
        found[principal] = {Quota(name): limit for name, limit in limits.items() if name in _NAMES}
    return found


def edited(data: bytes | None, principal: str, set_: Mapping[str, int], unset: Iterable[str]) -> bytes:
    """The document after a change; `data` None: there is none yet. Raises `InvalidRequest` and `InvalidSetting` for
    what cannot be set, `CoordinationUnavailable` for a document that cannot be read."""
    check_principal(principal)
    if set_ and principal != EVERYBODY:
        Principal.parse(principal)  # what is kept of others can be taken away alone
    for name, limit in set_.items():
        check_limit(parse_quota(name), limit)
    document: dict[str, Any] = {_QUOTAS: {}} if data is None else _read(data)
    limits = {**document[_QUOTAS].get(principal, {}), **set_}
    for name in unset:
        limits.pop(parse_quota(name), None)
    if limits:
        document[_QUOTAS][principal] = limits
    else:
        document[_QUOTAS].pop(principal, None)
    return json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def check_principal(principal: str) -> None:
    """Raises `InvalidRequest` for who cannot have quotas."""
    if principal != EVERYBODY and kind_of_kept(principal) != "User":
        raise InvalidRequest(f"quotas are for users, not for {quoted(principal)}: name User:NAME, or * for all others")


def _read(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
        for principal, limits in document[_QUOTAS].items():
            check_principal(principal)
            for name, limit in limits.items():
                if type(limit) is not int:
                    raise ValueError(f"{name} of {principal} is no whole number")
                if name in _NAMES:
                    check_limit(Quota(name), limit)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, TritonMQError) as error:
        raise CoordinationUnavailable(
            f"the security document {DOCUMENT} does not hold quotas ({shortened(repr(error), _ERROR_BYTES_MAX)}): "
            "put back what was there"
        ) from error
    found: dict[str, Any] = document
    return found
