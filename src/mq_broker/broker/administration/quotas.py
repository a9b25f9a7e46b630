"""Quotas as administrators see them: listed and changed. They are kept beside the rules of rights, and read with them
(acls.py)."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from mq_broker.coordination.interface import CoordinationService, SecurityDocuments
from mq_broker.core.messages import CasOutcome
from mq_broker.rpc.callers import asker
from mq_broker.security.audit import Audit
from mq_broker.security.quota_documents import DOCUMENT, edited, load
from mq_broker.security.quotas import Quotas
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, OutcomeUnknown
from mq_protocol.quotas import Quota

log = logging.getLogger(__name__)

EDIT_ATTEMPTS_MAX: Final = 20
EDIT_PAUSE_S: Final = 0.02


class QuotaSettings:
    """Owns the document as it was read last. `named`: users have names here. `refresh` is to be set: it reads it anew,
    with the other documents."""

    def __init__(
        self, coordination: CoordinationService, quotas: Quotas, audit: Audit | None = None, *, named: bool = False
    ) -> None:
        self._named = named
        self.refresh: Callable[[], Awaitable[None]]
        self._coordination = coordination
        self._quotas = quotas
        self._audit = audit
        self._read: bytes | None = None
        self._version = -1
        self._told = ""

    def taken(self, found: SecurityDocuments) -> None:
        """These were read; they are in force from now on. A document that cannot be read leaves things as they are."""
        self._version = found.version
        data = found.documents[DOCUMENT][1] if DOCUMENT in found.documents else None
        try:
            limits = self._quotas.limits if data == self._read else {} if data is None else load(data)
        except CoordinationUnavailable as error:
            if str(error) != self._told:
                self._told = str(error)
                log.error("%s. Until then quotas stay as they were read last", error)  # noqa: TRY400
            return
        self._read, self._told = data, ""
        self._quotas.take(asyncio.get_running_loop().time(), found.version, limits)

    async def quotas(self, _request: pb.QuotasRequest, _deadline: float) -> pb.QuotasResponse:
        """Those that are kept now, which are in force here as well."""
        await self.refresh()
        answer = pb.QuotasResponse(version=self._version, in_force=self._quotas.version, anonymous=not self._named)
        answer.defaults.update(_told(self._quotas.defaults))
        for principal in sorted(self._quotas.limits):
            answer.quotas.add(principal=principal).limits.update(_told(self._quotas.limits[principal]))
        return answer

    async def alter_quotas(self, request: pb.AlterQuotasRequest, _deadline: float) -> pb.AlterQuotasResponse:
        """All of it or nothing; in force at this broker when it is answered, at the others within 2 s. May be asked
        again."""
        if not request.set and not request.unset:
            raise InvalidRequest("no quota is given: name one to set, or one that is not to be set any more")
        for attempt in range(EDIT_ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(random.uniform(0, EDIT_PAUSE_S * attempt))  # noqa: S311 - two who met should not meet again
            found = await self._coordination.security.read()
            version, before = found.documents.get(DOCUMENT, (-1, None))
            after = edited(before, request.principal, request.set, request.unset)
            written = found.version
            if after != before:
                outcome, written = await self._coordination.security.write({DOCUMENT: (version, after)})
                if outcome is not CasOutcome.DONE:
                    continue
            self._note(request)
            await self.refresh()
            return pb.AlterQuotasResponse(version=written)
        raise OutcomeUnknown("quotas kept changing, or the answers were lost: look at them, then ask again")

    def _note(self, request: pb.AlterQuotasRequest) -> None:
        if self._audit is not None:
            said = [request.principal, dict(sorted(request.set.items())), list(request.unset)]
            self._audit.allowed(asker(), "AlterQuotas", "set", json.dumps(said), often=False)


def _told(limits: Mapping[Quota, int]) -> dict[str, int]:
    return {str(quota): limit for quota, limit in limits.items()}
