"""Who asks: known to all that a request sets going, without being passed from hand to hand.

`caller` is the connection, by which clients take turns. `principal` is the name that the connection has proved, or a
token at the port for them, by which rights are judged (security/names.py). `asker` is the same with what it may do: who
lists things leaves out what it may not see.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, NamedTuple

from mq_broker.rpc.call import Call
from mq_broker.security.authority import NOBODY_ASKS, Asker
from mq_broker.security.client_port import ClientPort
from mq_broker.security.failures import host_of
from mq_broker.security.names import ANONYMOUS, Principal, member_of, of_auth_context, serial_of
from mq_broker.security.verified import Verified
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused

_caller: Final[ContextVar[str]] = ContextVar("caller", default="")
_principal: Final[ContextVar[Principal]] = ContextVar("principal", default=ANONYMOUS)
_serial: Final[ContextVar[str]] = ContextVar("serial", default="")
_asker: Final[ContextVar[Asker]] = ContextVar("asker", default=NOBODY_ASKS)
_by_grpc: Final[ContextVar[bool]] = ContextVar("by_grpc", default=False)
_verified: Final[ContextVar[Verified | None]] = ContextVar("verified", default=None)


class Forwarded(NamedTuple):
    """Who asks, by the word of the broker that has passed the call on. `address`: of the client's connection, with that
    broker."""

    principal: Principal
    serial: str
    address: str
    token: Verified | None
    by_grpc: bool = False


_forwarded: Final[ContextVar[Forwarded | None]] = ContextVar("forwarded", default=None)


def caller() -> str:
    """Whose request is being answered in this task; empty where it is nobody's."""
    return _caller.get()


def account() -> str:
    """To whom the cost of that request is put down: a user, or a host where nobody has a name. Not a connection, of
    which whoever wants to has many."""
    found = _principal.get()
    return host_of(_caller.get()) if found == ANONYMOUS else str(found)


def principal() -> Principal:
    """In whose name the request is that this task answers; `User:ANONYMOUS` where it is nobody's."""
    return _principal.get()


def serial() -> str:
    """Of the certificate of the connection by which the request came; empty if it showed none."""
    return _serial.get()


def asker() -> Asker:
    """Who asks what this task answers, and what it may do. A broker itself may do everything."""
    return _asker.get()


def note_asker(asker: Asker) -> None:
    """For the task that answers this call, and all that it starts."""
    _asker.set(asker)


def note_nobody(*, by_grpc: bool) -> None:
    """A connection's task answers one call after another: what was known of the former one's is forgotten."""
    _by_grpc.set(by_grpc)
    _verified.set(None)
    _forwarded.set(None)
    _asker.set(NOBODY_ASKS)
    _principal.set(ANONYMOUS)
    _caller.set("")
    _serial.set("")


def note_verified(verified: Verified) -> None:
    """By entering.py alone: what the call's token has proved, for the task that answers it."""
    _verified.set(verified)


def note_forwarded(forwarded: Forwarded) -> None:
    """By entering.py alone: in whose name a broker has passed this call on."""
    _forwarded.set(forwarded)
    _by_grpc.set(forwarded.by_grpc)
    _verified.set(forwarded.token)


def verified() -> Verified | None:
    """What the token of this call has proved; None if it showed none."""
    return _verified.get()


def client_port() -> ClientPort:
    """By which kind of port the request came. In plain text nobody has a name."""
    token = _verified.get() is not None
    return ClientPort(tls=token or _principal.get() != ANONYMOUS, token=token, grpc=_by_grpc.get())


def own_member(member: str) -> str:
    """What the brokers call the member of a group that the asker is under that id."""
    return member_of(_asker.get().principal, member)


def check_is_broker(broker: int, speaker: Principal) -> None:
    """Raises `PeerRefused` if the connection has proved to be somebody else's than that broker's. In plain text it has
    proved nothing: then the secret alone counts (peer_proof.py)."""
    if speaker not in (ANONYMOUS, Principal("Broker", str(broker))):
        raise PeerRefused(
            f"somebody calls itself broker {broker}, and its certificate is that of {speaker}", pb.PEER_NOT_ITSELF
        )


def note_caller(call: Call) -> Principal:
    """For the task that answers this call, and all that it starts. Every handler begins with it. Raises
    `NotAuthenticated` if the connection proves no name, though it should."""
    passed_on = _forwarded.get()
    if passed_on is not None:  # the connection is a broker's: it has proved that, and said whose call this is
        _serial.set(passed_on.serial)
        _caller.set(passed_on.address)
        _principal.set(passed_on.principal)
        return passed_on.principal
    by_token, number = _verified.get(), ""
    if by_token is None:
        proved = call.auth_context()  # made anew each time it is asked
        found = of_auth_context(proved)
        if found is not ANONYMOUS:
            number = serial_of(proved)
    else:
        found = by_token.principal
    _serial.set(number)
    _caller.set(call.peer())
    _principal.set(found)
    return found
