"""Rules about rights as an administrator sees them. `Admin` offers this as its methods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.paging import Parts
from mq_client.described import described
from mq_client.errors import InvalidRequest, PermissionDenied, TritonMQError
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import REQUEST_RULES_MAX
from mq_protocol.rights import CLUSTER_NAME, Kind, check_pair, parse_kind, parse_operation, shown_name

_IN_FORCE_MS = 5_000.0
"""A broker's time to read the rules after they were changed."""


@dataclass(frozen=True, slots=True)
class AclRule:
    """Allows `principal` (`User:NAME`, or `*` for everybody) one operation on one resource; with `prefix` on all of the
    kind whose names begin with `name`. `deny`: it denies instead, whatever other rules allow. Kinds: Topic, Group,
    Transaction, Lock, Cluster, which has no name. Raises `InvalidSetting` and `InvalidRequest` for what there is
    not."""

    principal: str
    operation: str
    kind: str
    name: str = CLUSTER_NAME
    prefix: bool = False
    deny: bool = False

    def __post_init__(self) -> None:
        check_pair(parse_kind(self.kind), parse_operation(self.operation))

    def __str__(self) -> str:
        resource = (
            "the cluster" if self.kind == Kind.CLUSTER else f"{self.kind} {shown_name(self.name, prefix=self.prefix)}"
        )
        return f"{self.principal} {'deny' if self.deny else 'allow'} {self.operation} on {resource}"


@dataclass(frozen=True, slots=True)
class AclChange:
    """How many rules, or revoked names and serials, came and went. `late`: addresses of brokers that have not said that
    they know of it. `not_judging`: of brokers that judge no rights, so that everybody may do everything there."""

    added: int
    removed: int
    late: tuple[str, ...] = ()
    not_judging: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AclVerdict:
    """`why`: in words. `rule`: the one that decided, if it was one."""

    allowed: bool
    why: str
    rule: AclRule | None = None


@dataclass(frozen=True, slots=True)
class KnownEntry:
    """What brokers know of a user or a serial that is to be revoked. `whose`: the user; empty if no broker has seen it
    since it started, and no rule names it. `longer`: serials that begin so, and were seen. `near`: a name that was most
    likely meant."""

    entry: str
    whose: str = ""
    longer: tuple[str, ...] = ()
    near: str = ""

    def with_more(self, told: pb.KnownEntry) -> KnownEntry:
        """With what another broker says."""
        longer = tuple(dict.fromkeys((*self.longer, *told.longer)))
        return KnownEntry(self.entry, self.whose or told.whose, longer, self.near or told.near)


class AclAdministrator:
    """A part of `Admin`, which gives it its connection."""

    _connection: Connection
    _timeout_ms: float

    def acls(self, principal: str = "") -> list[AclRule]:
        """The rules, in order; those of one principal, or all. Raises `PermissionDenied`."""
        deadline = Deadline(self._timeout_ms)
        request = pb.AclsRequest(principal=principal)
        found, parts = list[AclRule](), Parts()
        while True:
            answer = self._connection.ask_any("Acls", request, pb.AclsResponse, deadline)
            found += [described(AclRule, each) for each in answer.rules]
            if not parts.more(answer, answer.rules):
                return found
            request.after.CopyFrom(answer.rules[-1])

    def alter_acls(self, add: Iterable[AclRule] = (), remove: Iterable[AclRule] = ()) -> AclChange:
        """All of it or nothing. A rule that is there is not added again. Returns once every broker that answers judges
        by the rules as they are then. Raises `PermissionDenied`, `InvalidRequest`."""
        added, removed = ([pb.AclRule(**asdict(rule)) for rule in rules] for rules in (add, remove))
        if max(len(added), len(removed)) > REQUEST_RULES_MAX:
            raise InvalidRequest(f"at most {REQUEST_RULES_MAX} rules are added or removed at once: ask several times")
        deadline = Deadline(self._timeout_ms)
        request = pb.AlterAclsRequest(add=added, remove=removed)
        answer = self._connection.ask_any("AlterAcls", request, pb.AlterAclsResponse, deadline)
        late, not_judging = self._in_force((added + removed)[0].principal, answer.version, deadline)
        return described(AclChange, answer, late=late, not_judging=not_judging)

    def revoke(self, *who: str, undo: bool = False) -> AclChange:
        """Revoke users (`User:NAME`) and certificates (by serial, as `tritonmq cert show` tells it), all of them or
        none; with `undo` take that back. What they have open ends. Returns once every broker that answers refuses them.
        Raises `PermissionDenied`, `InvalidRequest`."""
        if not 1 <= len(who) <= REQUEST_RULES_MAX:
            raise InvalidRequest(f"name 1 to {REQUEST_RULES_MAX} users or serials at once")
        deadline = Deadline(self._timeout_ms)
        request = pb.RevokeRequest(remove=who) if undo else pb.RevokeRequest(add=who)
        answer = self._connection.ask_any("Revoke", request, pb.RevokeResponse, deadline)
        late, not_judging = self._in_force("*", answer.version, deadline)
        return described(AclChange, answer, late=late, not_judging=not_judging)

    def known_to_brokers(self, *who: str) -> list[KnownEntry]:
        """What the brokers know of these users and serials, in order: those that answer, since each of them started.
        Raises `PermissionDenied`, `InvalidRequest`."""
        deadline = Deadline(self._timeout_ms)
        found = [KnownEntry(entry) for entry in who]
        for address in self._connection.addresses():
            try:
                request = pb.RevokedRequest(about=who)
                answer = self._connection.ask(
                    address, "Revoked", request, pb.RevokedResponse, deadline.at_most(_IN_FORCE_MS)
                )
            except (PermissionDenied, InvalidRequest):
                raise
            except TritonMQError:
                continue
            found = [each.with_more(told) for each, told in zip(found, answer.known, strict=False)] or found
        return found

    def revoked(self) -> list[str]:
        """The users and the serials that are revoked. Raises `PermissionDenied`."""
        deadline = Deadline(self._timeout_ms)
        return list(self._connection.ask_any("Revoked", pb.RevokedRequest(), pb.RevokedResponse, deadline).entries)

    def not_judging(self) -> tuple[str, ...]:
        """The addresses of brokers that judge no rights: there everybody may do everything, whatever the rules say.
        Those that do not answer are not among them. Raises `PermissionDenied`."""
        return self._in_force("*", -1, Deadline(self._timeout_ms))[1]

    def _in_force(self, principal: str, version: int, deadline: Deadline) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Brokers that do not know that version yet, and those that judge no rights. Asked, they read it."""
        late, free = [], []
        for address in self._connection.addresses():
            try:
                answer = self._connection.ask(
                    address,
                    "Acls",
                    pb.AclsRequest(principal=principal),
                    pb.AclsResponse,
                    deadline.at_most(_IN_FORCE_MS),
                )
            except TritonMQError:
                late.append(address)
                continue
            if answer.in_force < version:
                late.append(address)
            if not answer.judged:
                free.append(address)
        return tuple(late), tuple(free)

    def check_acl(self, principal: str, operation: str, kind: str, name: str = CLUSTER_NAME) -> AclVerdict:
        """What the rules say if that principal asked for that. Raises `PermissionDenied`, `InvalidSetting`."""
        check_pair(parse_kind(kind), parse_operation(operation))
        request = pb.CheckAclRequest(principal=principal, operation=operation, kind=kind, name=name)
        answer = self._connection.ask_any("CheckAcl", request, pb.CheckAclResponse, Deadline(self._timeout_ms))
        rule = described(AclRule, answer.rule) if answer.HasField("rule") else None
        return described(AclVerdict, answer, rule=rule)
