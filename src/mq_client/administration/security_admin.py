"""Rights, tokens, quotas and the security floor as an administrator sees them. `Admin` offers this as its methods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TypeVar

from google.protobuf.message import Message

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.paging import Parts
from mq_client.errors import InvalidRequest, InvalidSetting, PermissionDenied, TritonMQError
from mq_client.shown.described import described
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.quotas import EVERYBODY, Quota, check_limit, parse_limit, parse_quota
from mq_protocol.access.rights import CLUSTER_NAME, Kind, check_pair, parse_kind, parse_operation, shown_name
from mq_protocol.access.secrets import Secret, api_token_id_in, digest_of, new_api_token
from mq_protocol.limits import API_TOKEN_VALID_S, REQUEST_RULES_MAX

R = TypeVar("R", bound=Message)

_IN_FORCE_MS = 5_000.0
"""A broker's time to read the rules, or the quotas, after they were changed."""


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


@dataclass(frozen=True, slots=True)
class NewApiToken:
    """`secret`: the token, which is shown nowhere unless `secret.reveal()` is asked for. `late`: addresses of brokers
    that have not said that they know it yet. `nowhere_taken`: no broker has a port for tokens now (--listen-token)."""

    user: str
    id: str
    secret: Secret
    expires_at: datetime
    late: tuple[str, ...] = ()
    nowhere_taken: bool = False


@dataclass(frozen=True, slots=True)
class ApiTokenDescription:
    """A token as it is kept: nobody can tell its text from that."""

    id: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class TokenUser:
    """A user with API tokens: those that are valid, and such as have expired."""

    name: str
    created_at: datetime
    tokens: tuple[ApiTokenDescription, ...] = ()


class SecurityAdministrator:
    """A part of `Admin`, which gives it its connection."""

    _connection: Connection
    _timeout_ms: float

    def _asked_each(
        self, method: str, request: Message, response: type[R], deadline: Deadline
    ) -> Iterator[tuple[str, R | TritonMQError]]:
        """What each broker says, or why it does not, by its address. Asked, it reads what was changed."""
        for address in self._connection.addresses():
            try:
                yield address, self._connection.ask(address, method, request, response, deadline.at_most(_IN_FORCE_MS))
            except TritonMQError as error:
                yield address, error

    # ------------------------------------------------------------------ rights

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
        for _, answer in self._asked_each("Revoked", pb.RevokedRequest(about=who), pb.RevokedResponse, deadline):
            if isinstance(answer, PermissionDenied | InvalidRequest):
                raise answer
            if isinstance(answer, TritonMQError):
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
        asked = pb.AclsRequest(principal=principal)
        answers = list(self._asked_each("Acls", asked, pb.AclsResponse, deadline))
        free = [at for at, answer in answers if not isinstance(answer, TritonMQError) and not answer.judged]
        return _behind(answers, version), tuple(free)

    def check_acl(self, principal: str, operation: str, kind: str, name: str = CLUSTER_NAME) -> AclVerdict:
        """What the rules say if that principal asked for that. Raises `PermissionDenied`, `InvalidSetting`."""
        check_pair(parse_kind(kind), parse_operation(operation))
        request = pb.CheckAclRequest(principal=principal, operation=operation, kind=kind, name=name)
        answer = self._connection.ask_any("CheckAcl", request, pb.CheckAclResponse, Deadline(self._timeout_ms))
        rule = described(AclRule, answer.rule) if answer.HasField("rule") else None
        return described(AclVerdict, answer, rule=rule)

    # ------------------------------------------------------------------ tokens

    def create_user(self, name: str, valid_s: int = API_TOKEN_VALID_S) -> NewApiToken:
        """Make a user who speaks with a token, and its first one. Its rights are those of `User:<name>`, none at first.
        Raises `InvalidRequest` for a user that is there, `PermissionDenied`."""
        return self._new_token(pb.AlterTokensRequest(create_user=name), name, valid_s)

    def create_token(self, user: str, valid_s: int = API_TOKEN_VALID_S) -> NewApiToken:
        """Make a further one. Two may be valid at once. Raises `InvalidRequest`, `PermissionDenied`."""
        return self._new_token(pb.AlterTokensRequest(user=user), user, valid_s)

    def delete_user(self, name: str) -> AclChange:
        """With all tokens. What they have open ends. Certificates in that name stay good: see `revoke`. Raises
        `InvalidRequest`, `PermissionDenied`."""
        return self._taken_away(pb.AlterTokensRequest(delete_user=name))

    def revoke_token(self, id: str) -> AclChange:  # noqa: A002 - the field's name
        """By its id, or by the whole token, of which no more than the id is sent. What it has open ends. Raises
        `InvalidSetting`, `InvalidRequest`, `PermissionDenied`."""
        return self._taken_away(pb.AlterTokensRequest(revoke_token=api_token_id_in(id)))

    def token_users(self, name: str = "") -> list[TokenUser]:
        """Who has tokens, or had: one, or all in order. Raises `PermissionDenied`."""
        deadline = Deadline(self._timeout_ms)
        answer = self._connection.ask_any("Tokens", pb.TokensRequest(user=name), pb.TokensResponse, deadline)
        return [
            TokenUser(
                user.name,
                _time(user.created_s),
                tuple(
                    ApiTokenDescription(token.id, _time(token.created_s), _time(token.expires_s))
                    for token in user.tokens
                ),
            )
            for user in answer.users
        ]

    def _new_token(self, request: pb.AlterTokensRequest, user: str, valid_s: int) -> NewApiToken:
        number, token = new_api_token()
        request.token.CopyFrom(pb.NewApiToken(id=number, sha256=digest_of(token.reveal()), valid_s=valid_s))
        deadline = Deadline(self._timeout_ms)
        answer = self._connection.ask_any("AlterTokens", request, pb.AlterTokensResponse, deadline)
        late, _ = self._in_force("*", answer.version, deadline)
        return NewApiToken(user, number, token, _time(answer.expires_s), late, answer.nowhere_taken)

    def _taken_away(self, request: pb.AlterTokensRequest) -> AclChange:
        deadline = Deadline(self._timeout_ms)
        answer = self._connection.ask_any("AlterTokens", request, pb.AlterTokensResponse, deadline)
        return AclChange(0, 1, *self._in_force("*", answer.version, deadline))

    # ------------------------------------------------------------------ quotas

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
        return _behind(self._asked_each("Quotas", pb.QuotasRequest(), pb.QuotasResponse, deadline), answer.version)

    def delete_quotas(self, principal: str) -> tuple[str, ...]:
        """Nothing is set for the principal any more. As `set_quotas`."""
        return self.set_quotas(principal, **dict.fromkeys(map(str, Quota)))

    def without_names(self) -> tuple[str, ...]:
        """The addresses of brokers at which everybody is `User:ANONYMOUS`: what is set for a user is of no use there.
        Those that do not answer are not among them. Raises `PermissionDenied`."""
        answers = self._asked_each("Quotas", pb.QuotasRequest(), pb.QuotasResponse, Deadline(self._timeout_ms))
        return tuple(at for at, answer in answers if not isinstance(answer, TritonMQError) and answer.anonymous)

    # ------------------------------------------------------------------ the floor

    def security_floor(self) -> SecurityFloor:
        """What is demanded, and what each broker offers. Raises `PermissionDenied`."""
        answer = self._connection.ask_any(
            "SecurityFloor", pb.SecurityFloorRequest(), pb.SecurityFloorResponse, Deadline(self._timeout_ms)
        )
        return _floor(answer)

    def raise_security_floor(self, *demands: str, force: bool = False) -> SecurityFloor:
        """Demand these of every broker from now on: one that does not offer them does not start, and stops if it runs.

        Raises `InvalidRequest` unless every registered broker offers them; also while brokers that hold replicas are
        not registered, unless `force`. `PermissionDenied`.
        """
        return self._alter_floor(add=demands, force=force)

    def lower_security_floor(self, *demands: str) -> SecurityFloor:
        """Do not demand these any more. Raises `PermissionDenied`."""
        return self._alter_floor(remove=demands)

    def _alter_floor(
        self, add: Iterable[str] = (), remove: Iterable[str] = (), *, force: bool = False
    ) -> SecurityFloor:
        request = pb.AlterSecurityFloorRequest(add=add, remove=remove, force=force)
        deadline = Deadline(self._timeout_ms)
        return _floor(self._connection.ask_any("AlterSecurityFloor", request, pb.SecurityFloorResponse, deadline))


def _behind(
    answers: Iterable[tuple[str, pb.AclsResponse | TritonMQError] | tuple[str, pb.QuotasResponse | TritonMQError]],
    version: int,
) -> tuple[str, ...]:
    """Brokers that do not go by that version yet, or do not answer."""
    return tuple(at for at, answer in answers if isinstance(answer, TritonMQError) or answer.in_force < version)


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@dataclass(frozen=True, slots=True)
class QuotaDescription:
    """What was set for `principal` (`User:NAME`, or `*` for everybody for whom it is not set otherwise): by the name of
    the quota the limit, -1 for none. `built_in`: nobody has set it; it holds where nothing is set."""

    principal: str
    limits: Mapping[str, int]
    built_in: bool = False


def _limit(quota: Quota, limit: int | str) -> int:
    if isinstance(limit, str):
        return parse_limit(quota, limit)
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidSetting(f"{quota}={limit!r} is no whole number: give one, or text such as '50MiB/s'")
    return check_limit(quota, limit)


@dataclass(frozen=True, slots=True)
class SecurityFloor:
    """What the cluster demands of each broker: `tls`, `authorize`, `zk_auth`. `before`: the change. `offers`: what each
    registered broker offers, by its id. `absent`: brokers that hold replicas and are not registered.
    `coordination_access`: as in `ClusterDescription`."""

    demands: tuple[str, ...]
    before: tuple[str, ...]
    offers: Mapping[int, tuple[str, ...]]
    absent: tuple[int, ...]
    coordination_access: str

    @property
    def can_demand(self) -> tuple[str, ...]:
        """What every registered broker offers, and is not demanded yet."""
        offers = list(self.offers.values())
        common = [each for each in offers[0] if all(each in other for other in offers)] if offers else []
        closed = self.coordination_access == "closed"
        return tuple(each for each in common if each not in self.demands and (each != "zk_auth" or closed))


def _floor(answer: pb.SecurityFloorResponse) -> SecurityFloor:
    offers = {broker.id: tuple(broker.offers) for broker in answer.brokers}
    return described(SecurityFloor, answer, offers=offers)
