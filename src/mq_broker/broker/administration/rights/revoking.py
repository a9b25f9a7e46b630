"""Revoking users and certificates: what is kept is changed here, and acls.py puts it in force."""

from __future__ import annotations

from collections.abc import Callable

from mq_broker.broker.administration.rights.acls import Acls
from mq_broker.coordination.service import CoordinationService
from mq_broker.rpc.callers import asker
from mq_broker.security.audit import Audit
from mq_broker.security.authority import Authority
from mq_broker.security.names import Principal
from mq_broker.security.revoked import Seen, dump, entry_of, new_entry_of
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest


class Revoking:
    """Owns nothing. `acls` reads what has changed. `own`: this broker, and what tells the serial of
    its certificate; empty for none."""

    def __init__(
        self,
        coordination: CoordinationService,
        authority: Authority,
        acls: Acls,
        audit: Audit | None,
        seen: Seen,
        own: tuple[int, Callable[[], str]],
    ) -> None:
        self._seen = seen
        self._own = own
        self._coordination = coordination
        self._authority = authority
        self._acls = acls
        self._audit = audit

    async def revoked(self, request: pb.RevokedRequest, _deadline: float) -> pb.RevokedResponse:
        """What is kept now, which is in force here as well; and what is known here of what is asked about."""
        about = [entry_of(each) for each in request.about]
        await self._acls.refresh()
        found = await self._coordination.security.read()
        return pb.RevokedResponse(
            entries=self._acls.revoked.kept(found)[1].entries,
            version=found.version,
            in_force=self._authority.version,
            judged=self._authority.on,
            known=[self._known(entry) for entry in about],
        )

    def _known(self, entry: str) -> pb.KnownEntry:
        broker, serial = self._own[0], self._own[1]()
        if serial:
            self._seen.note(str(Principal("Broker", str(broker))), serial)
        known = self._seen.known(entry, self._acls.users)
        return pb.KnownEntry(whose=known.whose, longer=known.longer, near=known.near)

    async def revoke(self, request: pb.RevokeRequest, _deadline: float) -> pb.RevokeResponse:
        """All of it or nothing; in force at this broker when it is answered, at the others within 2 s. May be asked
        again."""
        add, remove = {new_entry_of(each) for each in request.add}, {entry_of(each) for each in request.remove}
        if not add and not remove:
            raise InvalidRequest("nothing is named: give User:NAME, or a certificate's serial")
        if add & {asker().text, asker().serial}:
            raise InvalidRequest("this would lock out whoever asks for it: do it as another administrator")
        before, after, version = await self._acls.revoked.edit(
            self._coordination.security, "what is revoked", lambda kept: kept.changed(add, remove), dump
        )
        self._note(add, remove)
        await self._acls.refresh()
        was, now = set(before.entries), set(after.entries)
        return pb.RevokeResponse(version=version, added=len(now - was), removed=len(was - now))

    def _note(self, add: set[str], remove: set[str]) -> None:
        """In the audit log, each in a line of its own."""
        if self._audit is not None:
            for what, entries in (("add", add), ("remove", remove)):
                for entry in sorted(entries):
                    self._audit.allowed(asker(), "Revoke", what, entry, often=False)
