"""Who may do what on this broker, now: the rules that were read last, superusers, who and what is revoked, and which
API tokens there are.

Where rights are not judged, everybody may do everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol

from mq_broker.security.names import ANONYMOUS, Principal
from mq_broker.security.quotas import Meter
from mq_broker.security.revoked import Revoked
from mq_broker.security.rules import RuleBook, Verdict
from mq_broker.security.tokens import Tokens
from mq_broker.security.verified import Verified
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.names import INTERNAL_PREFIX, TRANSACTIONS_TOPIC, quoted

_FREE: Final = Verdict(True, "rights are not judged here")
_SUPERUSER: Final = Verdict(True, "a superuser may do everything")
_INTERNAL: Final = Verdict(False, "the topic is the brokers' own")


class Authority:
    """Owns the rules in force. `on`: rights are judged. `changed` is called after rules, revoked names or
    tokens have changed."""

    def __init__(self, *, on: bool = False, superusers: Collection[Principal] = ()) -> None:
        self.on = on
        self.version = -1
        self.changed: list[Callable[[], None]] = []
        self._superusers = frozenset(map(str, superusers))
        self._revoked = Revoked()
        self.tokens = Tokens()
        self._book = RuleBook(readable=not on)  # until the rules are read

    def take(self, version: int, book: RuleBook, revoked: Revoked, tokens: Tokens) -> None:
        """These are in force from now on. `version`: of the documents that they were read from."""
        self.version, self._book, self._revoked, self.tokens = version, book, revoked, tokens
        for told in self.changed:
            told()

    @property
    def readable(self) -> bool:
        return self._book.readable

    def is_superuser(self, principal: str) -> bool:
        return not self.on or principal in self._superusers

    def is_revoked(self, asker: Asker) -> bool:
        return self.on and self._revoked.has(asker.text, asker.serial)

    def has_token_of(self, asker: Asker) -> bool:
        """Whether what made the asker's name is still kept, if it is an API token."""
        return asker.token is None or not asker.token.api_token or asker.token.api_token in self.tokens.by_id

    def verdict(
        self, principal: str, operation: Operation, kind: Kind, name: str, groups: tuple[str, ...] = ()
    ) -> Verdict:
        """`principal` and `groups`: as `str` gives them."""
        return self.by_rules(principal, operation, kind, name, groups) if self.on else _FREE

    def by_rules(
        self, principal: str, operation: Operation, kind: Kind, name: str, groups: tuple[str, ...] = ()
    ) -> Verdict:
        """The verdict, also where rights are not judged yet."""
        if principal in self._superusers:
            return _SUPERUSER
        if kind is Kind.TOPIC and name.startswith(INTERNAL_PREFIX):
            if name == TRANSACTIONS_TOPIC and operation is Operation.DESCRIBE:  # who writes finds its coordinator by it
                return self.any_name(principal, Operation.WRITE, kind, groups)
            return _INTERNAL
        return self._book.verdict(principal, operation, kind, name, groups)

    def any_name(self, principal: str, operation: Operation, kind: Kind, groups: tuple[str, ...] = ()) -> Verdict:
        """Whether there is a name on which the principal may do that."""
        if not self.on:
            return _FREE
        if principal in self._superusers:
            return _SUPERUSER
        return self._book.any_name(principal, operation, kind, groups)


class Notes(Protocol):
    """Where it is noted who was denied something, or has changed something: the audit log."""

    def denied(self, asker: Asker, method: str, operation: str, resource: str, reason: str) -> None: ...
    def allowed(self, asker: Asker, method: str, operation: str, resource: str, *, often: bool) -> None: ...


class Asker:
    """Who asks for something, and what it may do at this moment. `address`: of the connection. `serial`: of its
    certificate. `token`: what it has shown instead of one. `is_user`: it is no broker. `free`: no right is judged.
    `meter`: what it uses of this broker; None for whom no quota holds. `method`: what it asks; `notes`: where it is
    noted what it is denied, or has changed, beside what the gate knows of."""

    __slots__ = (
        "_authority",
        "_method",
        "_notes",
        "address",
        "free",
        "groups",
        "is_user",
        "meter",
        "principal",
        "serial",
        "superuser",
        "text",
        "token",
    )

    def __init__(
        self,
        principal: Principal,
        address: str,
        authority: Authority,
        meter: Meter | None = None,
        serial: str = "",
        token: Verified | None = None,
        method: str = "",
        notes: Notes | None = None,
    ) -> None:
        self.serial = serial
        self.token = token
        self.groups = token.groups if token is not None else ()
        self.principal = principal
        self.text = str(principal)
        self.is_user = principal.kind == "User"
        self.address = address
        self.free = not authority.on
        self.meter = meter
        self.superuser = authority.is_superuser(self.text)
        self._authority = authority
        self._method = method
        self._notes = notes

    def verdict(self, operation: Operation, kind: Kind, name: str) -> Verdict:
        return self._authority.verdict(self.text, operation, kind, name, self.groups)

    def any_name(self, operation: Operation, kind: Kind) -> Verdict:
        return self._authority.any_name(self.text, operation, kind, self.groups)

    def may(self, operation: Operation, kind: Kind, name: str) -> bool:
        return self.free or self._authority.verdict(self.text, operation, kind, name, self.groups).allowed

    def note_denied(self, operation: Operation, kind: Kind, name: str, why: str) -> None:
        """In the audit log, if there is one: it may do that by the rules, and the thing is another user's."""
        if self._notes is not None:
            self._notes.denied(self, self._method, operation, resource_text(kind, name), why)

    def note_allowed(self, operation: Operation, kind: Kind, name: str, what: str) -> None:
        """In the audit log, if there is one: it has changed that."""
        if self._notes is not None:
            self._notes.allowed(self, self._method, operation, f"{resource_text(kind, name)}: {what}", often=False)


def resource_text(kind: Kind, name: str | None) -> str:
    """As the audit log names it. `name` None: any."""
    if kind is Kind.CLUSTER:
        return "the cluster"
    return f"any {kind.lower()}" if name is None else f"{kind.lower()} {quoted(name)}"


NOBODY_ASKS: Final = Asker(ANONYMOUS, "", Authority())
"""What a broker does by itself, and what another broker asks of it."""
