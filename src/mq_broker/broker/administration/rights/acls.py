"""Rules about rights: read from the coordination service when they change, put in force here, listed and changed.

The coordination service is the truth. This broker judges by what it read last, also while the service does not answer.
A document that cannot be read counts as it was read last; if it never was, nobody but superusers is allowed anything.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mq_broker.broker.runtime.periodic import Periodic
from mq_broker.coordination.editing import Changes, Document, edit_documents
from mq_broker.coordination.interface import ACL_DOCUMENTS, SecurityDocuments
from mq_broker.coordination.service import CoordinationService
from mq_broker.rpc.callers import asker
from mq_broker.security.audit import Audit
from mq_broker.security.authority import Authority
from mq_broker.security.names import Principal, kind_of_kept
from mq_broker.security.revoked import DOCUMENT as REVOKED
from mq_broker.security.revoked import Revoked
from mq_broker.security.revoked import load as load_revoked
from mq_broker.security.rules import EVERYBODY, Edit, Effect, Rule, RuleBook, check_new, edited, load
from mq_broker.security.tokens import DOCUMENT as TOKENS
from mq_broker.security.tokens import Tokens
from mq_broker.security.tokens import load as load_tokens
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import Kind, Operation, check_pair, parse_kind, parse_operation
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest
from mq_protocol.limits import ANSWER_BYTES_MAX

log = logging.getLogger(__name__)

SWEEP_S: Final = 30.0
"""What is written past `tritonmq acl` is in force after that."""

READ_INLINE_BYTES_MAX: Final = 16 << 10
"""Larger documents are read in a thread: sixteen of the largest size take a second."""

RULE_TOLD_BYTES: Final = 100
"""About what a rule takes in an answer, as an object, beside its names."""

Read = tuple[bytes, frozenset[Rule]]


class Acls:
    """Owns the rules as they were read last, by document. `others` are told of all documents that were read."""

    def __init__(
        self,
        coordination: CoordinationService,
        authority: Authority,
        audit: Audit | None,
        others: Sequence[Callable[[SecurityDocuments], None]],
    ) -> None:
        self._others = others
        self._coordination = coordination
        self._authority = authority
        self._audit = audit
        self._read: dict[str, Read] = {}
        self._rules: tuple[Rule, ...] = ()
        self.revoked = Document(REVOKED, load_revoked, Revoked(), "what was read of it last stays revoked")
        self.tokens = Document(TOKENS, load_tokens, Tokens(), "API tokens are those that were read last")
        self._version = -1
        self._reading = asyncio.Lock()
        self._told: dict[str, str] = {}  # what the log has said of documents that cannot be read

    # ------------------------------------------------------------------ what is in force

    async def refresh(self) -> None:
        """Read the rules, and quotas; they are in force when this returns. Raises `CoordinationUnavailable` if nobody
        answers."""
        async with self._reading:
            found = await self._coordination.security.read()
            self.revoked.taken(found)
            self.tokens.taken(found)
            if sum(len(data) for _, data in found.documents.values()) <= READ_INLINE_BYTES_MAX:
                taken = self._taken(found)
            else:
                taken = await asyncio.to_thread(self._taken, found)
            self._rules, book = taken
            self._version = found.version
            self._authority.take(found.version, book, self.revoked.now, self.tokens.now)
            for told in self._others:
                told(found)

    def _taken(self, found: SecurityDocuments) -> tuple[tuple[Rule, ...], RuleBook]:
        readable = True
        for name in ACL_DOCUMENTS:
            if name not in found.documents:
                self._read.pop(name, None)
                continue
            data = found.documents[name][1]
            if name in self._read and self._read[name][0] == data:
                continue
            try:
                self._read[name] = data, load(name, data)
                self._told.pop(name, None)
            except CoordinationUnavailable as error:
                known = name in self._read
                readable = readable and known
                if self._told.get(name) != str(error):
                    self._told[name] = str(error)
                    meant = "its rules stay as they were read last" if known else "only superusers are allowed anything"
                    log.error("%s. Until then %s", error, meant)  # noqa: TRY400
        rules = tuple(sorted(rule for _, document in self._read.values() for rule in document))
        return rules, RuleBook(rules, readable=readable)

    @property
    def users(self) -> set[str]:
        """Users whom rules name."""
        return {rule.principal for rule in self._rules if rule.principal != EVERYBODY}

    def following(self, changed: asyncio.Event) -> Periodic:
        """Reads again on every hint, and now and then without one."""
        unread = "rules cannot be read, those that were read last stay in force"
        return Periodic("follow rules", SWEEP_S, self.refresh, hint=changed, unread=unread)

    # ------------------------------------------------------------------ what clients ask

    async def acls(self, request: pb.AclsRequest, _deadline: float) -> pb.AclsResponse:
        """Rules in order, as many as fit one answer: those that are kept now, which are in force here as well."""
        if request.principal not in ("", EVERYBODY):
            kind_of_kept(request.principal)  # of what is none there are no rules, which would be told as an answer
        await self.refresh()
        answer = pb.AclsResponse(version=self._version, in_force=self._authority.version, judged=self._authority.on)
        after = rule_of(request.after) if request.HasField("after") else None
        size = 0
        for count, rule in enumerate(self._rules):
            if count % 500 == 499:
                await asyncio.sleep(0)
            if (after is not None and rule <= after) or request.principal not in ("", rule.principal):
                continue
            if size >= ANSWER_BYTES_MAX:
                answer.more = True
                break
            size += RULE_TOLD_BYTES + len(rule.principal) + len(rule.name)
            answer.rules.append(rule_told(rule))
        return answer

    async def alter_acls(self, request: pb.AlterAclsRequest, _deadline: float) -> pb.AlterAclsResponse:
        """All of it or nothing; in force at this broker when it is answered, at the others within 2 s. May be asked
        again."""
        add, remove = [rule_of(rule) for rule in request.add], [rule_of(rule) for rule in request.remove]
        if not add and not remove:
            raise InvalidRequest("no rule is given: name one to add, or one to remove")
        for rule in add:
            check_new(rule)
        edit = Edit({}, 0, 0)

        async def change(found: SecurityDocuments) -> Changes:
            nonlocal edit
            edit = edited(found.documents, add, remove)
            return edit.changes

        version = await edit_documents(self._coordination.security, "rules", change)
        self._note(add, remove)
        await self.refresh()
        return pb.AlterAclsResponse(version=version, added=edit.added, removed=edit.removed)

    def _note(self, add: Iterable[Rule], remove: Iterable[Rule]) -> None:
        """In the audit log, each rule in a line of its own."""
        if self._audit is None:
            return
        for what, rules in (("add", add), ("remove", remove)):
            for rule in rules:
                said = [rule.principal, rule.effect, rule.operation, rule.kind, rule.name, rule.prefix]
                self._audit.allowed(asker(), "AlterAcls", what, json.dumps(said), often=False)

    async def check_acl(self, request: pb.CheckAclRequest, _deadline: float) -> pb.CheckAclResponse:
        """What the rules that are kept now say of somebody who asks for something."""
        principal = Principal.parse(request.principal)
        kind, operation = parse_kind(request.kind), parse_operation(request.operation)
        check_pair(kind, operation)
        await self.refresh()
        verdict = self._authority.by_rules(str(principal), operation, kind, request.name)
        answer = pb.CheckAclResponse(allowed=verdict.allowed, why=verdict.why)
        if verdict.rule is not None:
            answer.rule.CopyFrom(rule_told(verdict.rule))
        return answer


def rule_of(told: pb.AclRule) -> Rule:
    """Raises `InvalidRequest` and `InvalidSetting`."""
    effect = Effect.DENY if told.deny else Effect.ALLOW
    operation: Operation = parse_operation(told.operation)
    kind: Kind = parse_kind(told.kind)
    return Rule(told.principal, effect, operation, kind, told.name, told.prefix)


def rule_told(rule: Rule) -> pb.AclRule:
    return pb.AclRule(
        principal=rule.principal,
        deny=rule.effect is Effect.DENY,
        operation=rule.operation,
        kind=rule.kind,
        name=rule.name,
        prefix=rule.prefix,
    )
