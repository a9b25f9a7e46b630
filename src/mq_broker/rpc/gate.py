"""The gate: the only way of a client's request to what answers it.

In this order: who asks (the name that the connection or a token has proved), whether that name, its certificate or its
token is revoked, how large the request is and what it may name (bounds.py), whether the asker is above a quota
(pacing.py), whether it has the rights that the method's row demands (`mq_protocol/access/rights.py`), and a line in
the audit log. Each name in a request is judged. What is under way for long is judged again whenever rules change, and
ended if its rights are gone. Produce is not ended: each of its batches is judged by itself, and refused by itself.
Whoever is revoked is ended in all.

A topic that the asker may not describe does not exist for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Final, NoReturn, TypeAlias

from google.protobuf.message import Message

from mq_broker.rpc.call import Call
from mq_broker.rpc.callers import caller, note_asker, note_caller, serial, verified
from mq_broker.rpc.pacing import Present, admit_request, paid_for
from mq_broker.rpc.turns import Turns
from mq_broker.security.audit import Audit
from mq_broker.security.authority import Asker, Authority, resource_text
from mq_broker.security.names import Principal
from mq_broker.security.quotas import Meter, Quotas
from mq_broker.security.revoked import Seen
from mq_broker.security.rules import Effect, Verdict
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import Kind, Need, Operation, command, row_of
from mq_protocol.errors import InvalidTopicName, NotAuthenticated, PermissionDenied, TritonMQError, UnknownTopic
from mq_protocol.methods import Method
from mq_protocol.names import check_topic_name, no_such_topic

Grant: TypeAlias = tuple[Operation, Kind, str | None]
"""A right that is used: on that name, or on any."""

LOOK_AGAIN_EVERY: Final = 500
"""Grants that are judged again before others have their turn."""

JUDGED_IN_A_TURN: Final = 100
"""Names in a request: one takes about two microseconds, and a record is acknowledged after three or four turns."""

ASKERS_MAX: Final = 4_096
"""Connections and methods of which it is remembered who asks there."""

_LATER_MAX_S: Final = 86_400.0 * 365
_REVOKED: Final = "the name or the certificate is revoked"


class UnderWay:
    """One call that may last, in a `with` block: the rights that it uses, and the task that is to end when one of them
    is gone. `allowed`: topics of its batches, judged since rules changed last."""

    __slots__ = ("_calls", "_error", "_expiry", "_task", "allowed", "asker", "grants", "method")

    def __init__(self, calls: set[UnderWay], asker: Asker, method: str) -> None:
        self.asker = asker
        self.method = method
        self.grants: dict[Grant, None] = {}
        self.allowed: set[str] = set()
        self._calls = calls
        self._error: TritonMQError | None = None
        self._task = asyncio.current_task()
        self._expiry: asyncio.TimerHandle | None = None

    def __enter__(self) -> UnderWay:
        self._calls.add(self)
        if self.asker.token is not None:
            self._expiry = _at(self.asker.token.expires_s, self.end, _nobody())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.discard(self)
        if self._expiry is not None:
            self._expiry.cancel()
        if self._error is not None and self._task is not None:
            self._task.uncancel()
            if kind is asyncio.CancelledError:
                raise self._error from error

    def end(self, error: TritonMQError) -> None:
        """The call ends with the error, wherever it is."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()


def _at(time_s: float, job: Callable[[TritonMQError], None], error: TritonMQError) -> asyncio.TimerHandle:
    """At a time in seconds since 1970. A clock that is set meanwhile counts from the next call on."""
    return asyncio.get_running_loop().call_later(min(max(0.0, time_s - time.time()), _LATER_MAX_S), job, error)


class Gate:
    """Owns the calls that are under way. `audit` None: nothing is noted. `quotas` hold for everybody but superusers,
    where there are any by name."""

    def __init__(self, authority: Authority, audit: Audit | None = None, quotas: Quotas | None = None) -> None:
        self.authority = authority
        self.audit = audit
        self.quotas = quotas or Quotas()
        self.calls: set[UnderWay] = set()
        self.seen = Seen()
        self._askers: dict[tuple[str, str], Asker] = {}
        self._looking: asyncio.Task[None] | None = None
        self._look_once_more = False
        authority.changed.append(self._rules_changed)

    def door(self, method: Method, name: str = "") -> Door:
        """`name`: what the audit log calls it, if it is asked in another way than by the method itself. Raises
        `LookupError` for a method that has no row: it is not served."""
        return Door(self, method, name)

    def greet(self, call: Call, method: str) -> Asker:
        """Who asks. Raises `NotAuthenticated` and `PermissionDenied`."""
        try:
            who = note_caller(call)
        except NotAuthenticated as error:
            if self.audit is not None:
                self.audit.stranger(call.peer(), method, str(error))
            raise
        asker = self._asker(who, caller(), method)
        if asker.free or not asker.superuser:
            asker.meter = self.quotas.meter_of(asker.text) or self._new_meter(asker)
        note_asker(asker)
        if not asker.free:
            self.check_still_known(asker, method)
        if not asker.is_user:
            self._refuse_broker(asker, method)
        return asker

    def _asker(self, who: Principal, address: str, method: str) -> Asker:
        """One for all requests of a method by a connection. An address may be another connection's by now, so it must
        be the same name and the same certificate. Whoever shows a token may show another in each request."""
        number, token = serial(), verified()
        known = self._askers.get((address, method))
        if known is not None and known.principal is who and known.serial == number and token is None:
            return known
        made = Asker(who, address, self.authority, serial=number, token=token, method=method, notes=self.audit)
        self.seen.note(made.text, number)
        if token is None:
            if len(self._askers) >= ASKERS_MAX:
                self._askers.clear()  # which of them are of connections that have gone is not known
            self._askers[address, method] = made
        return made

    def _new_meter(self, asker: Asker) -> Meter:
        return self.quotas.meter(asyncio.get_running_loop().time(), asker.text)

    def _refuse_broker(self, asker: Asker, method: str) -> NoReturn:
        why = "a broker's certificate is no user's"
        self._note_refused(asker, method, "", "", why)
        raise PermissionDenied(f"{asker.text} may not ask this as a client: {why}. Use a client's certificate")

    def check_still_known(self, asker: Asker, method: str) -> None:
        """Raises `NotAuthenticated` if its name, its certificate or its token is revoked."""
        if asker.token is None and not self.authority.is_revoked(asker):  # nearly always
            return
        if gone := self._gone(asker):
            self._note_refused(asker, method, "", "", gone[0])
            raise gone[1]

    def _gone(self, asker: Asker) -> tuple[str, TritonMQError] | None:
        """Why the asker has its name no more, and what it is told of that."""
        if not self.authority.has_token_of(asker):
            return "the token was revoked, or its user deleted", _nobody()
        return (
            (_REVOKED, _revoked() if asker.token is None else _nobody()) if self.authority.is_revoked(asker) else None
        )

    # ------------------------------------------------------------------ rights

    def judge(self, asker: Asker, method: str, operation: Operation, kind: Kind, name: str | None) -> None:
        """Raises what the asker is told of a right that it does not have: `UnknownTopic` or `PermissionDenied`."""
        error = self._refusal(asker, operation, kind, name)
        if error is not None:
            self._note_refused(asker, method, operation, resource_text(kind, name), _why(error))
            raise error

    def _refusal(self, asker: Asker, operation: Operation, kind: Kind, name: str | None) -> TritonMQError | None:
        verdict = asker.any_name(operation, kind) if name is None else asker.verdict(operation, kind, name)
        if verdict.allowed:
            return None
        hidden = kind is Kind.TOPIC and operation is not Operation.CREATE
        if hidden and name is not None and not asker.may(Operation.DESCRIBE, kind, name):
            return _not_there(name)
        return denied(asker.text, operation, kind, name, verdict)

    def _note_refused(self, asker: Asker, method: str, operation: str, resource: str, why: str) -> None:
        if self.audit is not None:
            self.audit.denied(asker, method, operation, resource, why)

    def note(self, asker: Asker, method: str, grants: Collection[Grant], *, changes: bool, reads: bool = False) -> None:
        """In the audit log: what changes something, all that superusers do, and who reads if that is asked for."""
        if self.audit is not None and not asker.free and (changes or asker.superuser or (reads and self.audit.reads)):
            operations = ",".join(sorted({operation for operation, _, _ in grants}))
            self.audit.allowed(asker, method, operations, _resources(grants), often=not changes)

    # ------------------------------------------------------------------ what is under way

    def _rules_changed(self) -> None:
        for call in self.calls:
            call.allowed.clear()
        self._look_once_more = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_again(), name="judge streams again")

    async def _look_again(self) -> None:
        """At the rights of all that is under way; anew if rules change meanwhile."""
        while self._look_once_more:
            self._look_once_more = False
            judged = 0
            for call in list(self.calls):
                if gone := self._gone(call.asker):
                    self._note_refused(call.asker, call.method, "", "", gone[0])
                    call.end(gone[1])
                    continue
                if call.asker.free:
                    continue
                for operation, kind, name in list(call.grants):
                    judged += 1
                    error = self._refusal(call.asker, operation, kind, name)
                    if error is not None:
                        self._note_refused(
                            call.asker, call.method, operation, resource_text(kind, name), "the right was taken away"
                        )
                        call.end(error)
                        break
                if judged >= LOOK_AGAIN_EVERY:
                    judged = 0
                    await asyncio.sleep(0)


class Door:
    """The gate before one method."""

    def __init__(self, gate: Gate, method: Method, name: str = "") -> None:
        self._gate = gate
        self._name = name or method.name
        self._row = row_of(method.name)

    def greet(self, call: Call) -> Asker:
        """Who asks: before anything is read. Raises `NotAuthenticated` and `PermissionDenied`."""
        return self._gate.greet(call, self._name)

    def check_any(self, asker: Asker) -> None:
        """When a stream is opened, and nothing of it was received: whoever has the first right of the row on no name at
        all has no use for it. Raises `PermissionDenied`."""
        if not asker.free:
            need = self._row.needs[0]
            self._gate.judge(asker, self._name, need.operation, need.kind, None)

    def under_way(self, asker: Asker) -> UnderWay:
        """Raises `NotAuthenticated` for who was revoked while the request was read: from now on it is told."""
        self._gate.check_still_known(asker, self._name)
        return UnderWay(self._gate.calls, asker, self._name)

    def present(self, asker: Asker, *, stream: bool = False) -> Present:
        """Around the call, while which it is counted."""
        return Present(asker.meter, asker.address, stream=stream)

    async def hold_back(self, asker: Asker) -> None:
        """Whoever is above a quota. Raises `Overloaded`."""
        if asker.meter is not None and not self._row.unhurried and not paid_for(asker.meter):
            await admit_request(asker.meter, self._name)

    async def admit(self, asker: Asker, request: Message) -> dict[Grant, None]:
        """The rights that the request uses. Raises `UnknownTopic` or `PermissionDenied` for the first that the asker
        does not have."""
        grants: dict[Grant, None] = {}
        if asker.free:
            return grants
        while True:
            version = self._gate.authority.version
            grants.clear()
            for need in self._row.needs:
                await self._admit(asker, need, request, grants)
            if self._gate.authority.version == version:  # no rule has changed while others had their turn
                break
        self._gate.note(asker, self._name, grants, changes=self._row.changes, reads=self._row.waits)
        return grants

    async def _admit(self, asker: Asker, need: Need, request: Message, grants: dict[Grant, None]) -> None:
        operation, kind = need.operation, need.kind
        if need.names is None:
            self._gate.judge(asker, self._name, operation, kind, None)
            grants[operation, kind, None] = None
            return
        turns = Turns()
        for count, name in enumerate(need.names(request), 1):
            if name and (operation, kind, name) not in grants:
                if not asker.verdict(operation, kind, name).allowed:
                    self._gate.judge(asker, self._name, operation, kind, name)
                grants[operation, kind, name] = None
            if count % JUDGED_IN_A_TURN == 0:
                await turns.others()

    def admit_batch(self, call: UnderWay, header: pb.ProduceHeader) -> TritonMQError | None:
        """Why a batch is refused; None if it is not."""
        topic = header.topic
        if call.asker.free or (topic in call.allowed and not header.HasField("stage")):
            return None
        try:
            for need in self._row.needs:
                for name in need.names(header) if need.names is not None else ():
                    if name and not call.asker.verdict(need.operation, need.kind, name).allowed:
                        self._gate.judge(call.asker, self._name, need.operation, need.kind, name)
        except TritonMQError as error:
            return error
        if topic in call.allowed:
            return None
        if len(call.allowed) >= ALLOWED_MAX:
            call.allowed.clear()
        call.allowed.add(topic)
        written = ((Operation.WRITE, Kind.TOPIC, topic),)
        self._gate.note(call.asker, self._name, written, changes=False, reads=True)
        return None


ALLOWED_MAX: Final = 10_000
"""Topics of one stream whose verdict is remembered."""


def denied(principal: str, operation: Operation, kind: Kind, name: str | None, verdict: Verdict) -> PermissionDenied:
    """What the asker is told, with what an administrator can do about it."""
    rule = verdict.rule
    if rule is not None and rule.effect is Effect.DENY:
        what = command("remove", rule.principal, rule.operation, rule.kind, rule.name, prefix=rule.prefix, deny=True)
        help_ = f"; `{what}` takes that rule away"
    elif verdict.rule is None and name is not None and verdict.why.startswith("no rule"):
        help_ = f"; `{command('allow', principal, operation, kind, name)}` would allow it"
    elif name is None:
        help_ = f"; `{command('allow', principal, operation, kind, 'NAME')}` would allow it, on any {kind.lower()}"
    else:
        help_ = ""
    return PermissionDenied(
        f"{principal} has no right {operation} on {resource_text(kind, name)}: {verdict.why}{help_}"
    )


def _not_there(topic: str) -> TritonMQError:
    """As if there were no such topic: no near names, which would tell of others."""
    try:
        check_topic_name(topic, internal=True)
    except InvalidTopicName as error:
        return error
    return UnknownTopic(no_such_topic(topic))


def _nobody() -> NotAuthenticated:
    """Whoever shows a token is told no more."""
    return NotAuthenticated(NotAuthenticated.NO_MORE)


def _revoked() -> NotAuthenticated:
    return NotAuthenticated(
        "not authenticated: this user or this certificate is revoked. Ask an administrator: `tritonmq cert revoke "
        "--list` shows which"
    )


def _why(error: TritonMQError) -> str:
    return "no right" if isinstance(error, PermissionDenied) else "no right to describe it"


_TOLD_MAX: Final = 10


def _resources(grants: Collection[Grant]) -> str:
    told = sorted({resource_text(kind, name) for _, kind, name in list(grants)[:_TOLD_MAX]})
    more = len(grants) - _TOLD_MAX
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")
