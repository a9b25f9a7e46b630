"""Quotas as administrators see them: listed and changed. They are kept beside the rules of rights, and read with them
(acls.py)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping

from mq_broker.coordination.editing import Changes, Document, edit_documents
from mq_broker.coordination.interface import SecurityDocuments
from mq_broker.coordination.service import CoordinationService
from mq_broker.rpc.callers import asker
from mq_broker.security.audit import Audit
from mq_broker.security.quotas import DOCUMENT, Limits, Quotas, edited, load
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.quotas import Quota
from mq_protocol.errors import InvalidRequest


class QuotaSettings:
    """Owns the document as it was read last. `named`: users have names here. `refresh` is to be set: it reads it anew,
    with the other documents."""

    def __init__(self, coordination: CoordinationService, quotas: Quotas, audit: Audit | None, *, named: bool) -> None:
        self._named = named
        self.refresh: Callable[[], Awaitable[None]]
        self._coordination = coordination
        self._quotas = quotas
        self._audit = audit
        self._document: Document[Limits] = Document(DOCUMENT, load, {}, "quotas stay as they were read last")
        self._version = -1

    def taken(self, found: SecurityDocuments) -> None:
        """These were read; they are in force from now on. A document that cannot be read leaves things as they are."""
        self._version = found.version
        if self._document.taken(found):
            self._quotas.take(asyncio.get_running_loop().time(), found.version, self._document.now)

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

        async def change(found: SecurityDocuments) -> Changes:
            version, before = found.documents.get(DOCUMENT, (-1, None))
            after = edited(before, request.principal, request.set, request.unset)
            return {} if after == before else {DOCUMENT: (version, after)}

        version = await edit_documents(self._coordination.security, "quotas", change)
        self._note(request)
        await self.refresh()
        return pb.AlterQuotasResponse(version=version)

    def _note(self, request: pb.AlterQuotasRequest) -> None:
        if self._audit is not None:
            said = [request.principal, dict(sorted(request.set.items())), list(request.unset)]
            self._audit.allowed(asker(), "AlterQuotas", "set", json.dumps(said), often=False)


def _told(limits: Mapping[Quota, int]) -> dict[str, int]:
    return {str(quota): limit for quota, limit in limits.items()}
