"""Quotas as an administrator sees them. `Admin` offers this as its methods."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.described import described
from mq_client.errors import InvalidSetting, TritonMQError
from mq_protocol import mq_pb2 as pb
from mq_protocol.quotas import EVERYBODY, Quota, check_limit, parse_limit, parse_quota

_IN_FORCE_MS = 5_000.0
"""A broker's time to read the quotas after they were changed."""


@dataclass(frozen=True, slots=True)
class QuotaDescription:
    """What was set for `principal` (`User:NAME`, or `*` for everybody for whom it is not set otherwise): by the name of
    the quota the limit, -1 for none. `built_in`: nobody has set it; it holds where nothing is set."""

    principal: str
    limits: Mapping[str, int]
    built_in: bool = False


class QuotaAdministrator:
    """A part of `Admin`, which gives it its connection."""

    _connection: Connection
    _timeout_ms: float

    def quotas(self) -> list[QuotaDescription]:
        """Those that are built in, then those that were set, in order of principal. Raises `PermissionDenied`."""
        answer = self._connection.ask_any("Quotas", pb.QuotasRequest(), pb.QuotasResponse, Deadline(self._timeout_ms))
        built_in = [QuotaDescription(EVERYBODY, dict(answer.defaults), built_in=True)] if answer.defaults else []
        return built_in + [described(QuotaDescription, each) for each in answer.quotas]

    def set_quotas(self, principal: str, **limits: int | str | None) -> tuple[str, ...]:
        """Set what is named: `set_quotas("User:etl", produce="50MiB/s", requests=500, streams="unlimited")`. None: it
        is not set any more. Quotas that are not named stay as they are.

        Returns once every broker that answers goes by it: the addresses of those that have not said so. Raises
        `PermissionDenied`, `InvalidSetting`, `InvalidRequest`.
        """
        request = pb.AlterQuotasRequest(principal=principal)
        for name, limit in limits.items():
            quota = parse_quota(name)
            if limit is None:
                request.unset.append(quota)
            else:
                request.set[quota] = _limit(quota, limit)
        deadline = Deadline(self._timeout_ms)
        answer = self._connection.ask_any("AlterQuotas", request, pb.AlterQuotasResponse, deadline)
        return self._not_yet(answer.version, deadline)

    def delete_quotas(self, principal: str) -> tuple[str, ...]:
        """Nothing is set for the principal any more. As `set_quotas`."""
        return self.set_quotas(principal, **dict.fromkeys(map(str, Quota)))

    def without_names(self) -> tuple[str, ...]:
        """The addresses of brokers at which everybody is `User:ANONYMOUS`: what is set for a user is of no use there.
        Those that do not answer are not among them. Raises `PermissionDenied`."""
        found = []
        deadline = Deadline(self._timeout_ms)
        for address in self._connection.addresses():
            with contextlib.suppress(TritonMQError):
                limit = deadline.at_most(_IN_FORCE_MS)
                if self._connection.ask(address, "Quotas", pb.QuotasRequest(), pb.QuotasResponse, limit).anonymous:
                    found.append(address)
        return tuple(found)

    def _not_yet(self, version: int, deadline: Deadline) -> tuple[str, ...]:
        """Brokers that do not go by that version yet. Asked, they read it."""
        late = []
        for address in self._connection.addresses():
            limit = deadline.at_most(_IN_FORCE_MS)
            try:
                answer = self._connection.ask(address, "Quotas", pb.QuotasRequest(), pb.QuotasResponse, limit)
                behind = answer.in_force < version
            except TritonMQError:
                behind = True
            if behind:
                late.append(address)
        return tuple(late)


def _limit(quota: Quota, limit: int | str) -> int:
    if isinstance(limit, str):
        return parse_limit(quota, limit)
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidSetting(f"{quota}={limit!r} is no whole number: give one, or text such as '50MiB/s'")
    return check_limit(quota, limit)
