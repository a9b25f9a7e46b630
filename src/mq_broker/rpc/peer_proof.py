"""How brokers of one cluster know each other: every one of them has read the same 32 random bytes in the coordination
service.

The secret itself is never sent, and never logged. What is sent are proofs, HMAC-SHA-256 by that secret:

- On a link, over both hellos: who dials whom, in which life, and a nonce of each side. Both sides prove it. A proof
  that was recorded is of no use on another link, since that link has other nonces; nor is one side's proof of use to
  the other side.
- On any other call, over the method, the caller, its life, and a time at which the proof expires.
- On a client's call that is passed on, also over whom it is for, and in whose name it is. So the proof of another call
  is of no use for it, and no other name can be put in.

This keeps clients and strangers away. It does not keep away whoever can read or change the network: that takes TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused
from mq_protocol.versions import ours

SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 32
CALL_EXPIRES_MS: Final = 30_000
CLOCKS_APART_MAX_MS: Final = 30_000
"""How far the caller's clock may be ahead. It may be behind by as much, since a proof expires after
`CALL_EXPIRES_MS`."""

_HELLO: Final = struct.Struct(">iqiii")
_CALL: Final = struct.Struct(">iqq")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class PeerProof:
    """Owns the secret, and who this broker is. `now_ms`: the wall clock, since two machines must agree on it."""

    def __init__(
        self, broker: int, incarnation: int, cluster_id: str, secret: bytes, now_ms: Callable[[], int] = _now_ms
    ) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret of a cluster's brokers has {SECRET_BYTES} bytes, not {len(secret)}")
        self.broker = broker
        self.incarnation = incarnation
        self._cluster = cluster_id.encode()
        self._secret = secret
        self._now_ms = now_ms

    # ------------------------------------------------------------------ links

    def hello(self, to: int) -> pb.LinkHello:
        """Who this broker is, with a new nonce, without a proof."""
        versions = ours()
        return pb.LinkHello(
            broker=self.broker,
            incarnation=self.incarnation,
            to=to,
            nonce=secrets.token_bytes(NONCE_BYTES),
            protocol=versions.protocol,
            protocol_oldest=versions.protocol_oldest,
            release=versions.release,
        )

    def of_dialler(self, dialler: pb.LinkHello, acceptor: pb.LinkHello) -> bytes:
        """The proof of the broker that dials, over both hellos."""
        return self._prove(b"link dialled", _said(dialler), _said(acceptor))

    def of_acceptor(self, dialler: pb.LinkHello, acceptor: pb.LinkHello) -> bytes:
        """The proof of the broker that was dialled, over both hellos."""
        return self._prove(b"link accepted", _said(dialler), _said(acceptor))

    # ------------------------------------------------------------------ other calls

    def call(self, method: str) -> pb.PeerCall:
        """What proves a call of that method (its full path)."""
        expires_ms = self._now_ms() + CALL_EXPIRES_MS
        said = _CALL.pack(self.broker, self.incarnation, expires_ms)
        proof = self._prove(b"call", method.encode(), said)
        return pb.PeerCall(broker=self.broker, incarnation=self.incarnation, expires_ms=expires_ms, proof=proof)

    def check_call(self, method: str, call: pb.PeerCall) -> None:
        """Raises `PeerRefused` if a broker of this cluster has not made the call."""
        said = _CALL.pack(call.broker, call.incarnation, call.expires_ms)
        require(call.proof, self._prove(b"call", method.encode(), said))
        self._check_age(call.broker, call.expires_ms)

    def forwarded(self, method: str, to: int, whose: pb.ForwardedFor) -> pb.ForwardedCall:
        """What a client's call carries that is passed on to broker `to`. `whose`: who asks."""
        whose.broker, whose.incarnation, whose.to = self.broker, self.incarnation, to
        whose.expires_ms = self._now_ms() + CALL_EXPIRES_MS
        said = whose.SerializeToString()
        return pb.ForwardedCall(said=said, proof=self._prove(b"forwarded", method.encode(), said))

    def check_forwarded(self, method: str, call: pb.ForwardedCall) -> pb.ForwardedFor:
        """Who asks, by the word of which broker. Raises `PeerRefused` if no broker of this cluster says so."""
        require(call.proof, self._prove(b"forwarded", method.encode(), call.said))
        whose = pb.ForwardedFor()
        try:
            whose.ParseFromString(call.said)
        except DecodeError as error:
            raise PeerRefused(f"malformed proof: {error}", pb.PEER_NO_PROOF) from error
        self._check_age(whose.broker, whose.expires_ms)
        return whose

    def _check_age(self, broker: int, expires_ms: int) -> None:
        left_ms = expires_ms - self._now_ms()
        if not 0 <= left_ms <= CALL_EXPIRES_MS + CLOCKS_APART_MAX_MS:
            raise PeerRefused(
                f"the call of broker {broker} is {CALL_EXPIRES_MS - left_ms} ms old by this broker's clock: "
                "set the clocks of both machines (NTP), they may differ by half a minute",
                pb.PEER_EXPIRED,
            )

    # ------------------------------------------------------------------ the proof

    def _prove(self, what: bytes, *said: bytes) -> bytes:
        """By parts with their lengths, so that no two different lists of parts are the same bytes."""
        parts = (b"tritonmq peer 1", what, self._cluster, *said)
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(self._secret, message, hashlib.sha256).digest()


def require(given: bytes, expected: bytes) -> None:
    """Raises `PeerRefused` if the proof is another one. Takes as long wherever they differ."""
    if not hmac.compare_digest(given, expected):
        raise PeerRefused(
            "the proof is wrong: a broker of another cluster, or no broker at all; check its --zookeeper",
            pb.PEER_NO_PROOF,
        )


def _said(hello: pb.LinkHello) -> bytes:
    """With the nonce, which has its length, before the release, which may have any."""
    who = _HELLO.pack(hello.broker, hello.incarnation, hello.to, hello.protocol, hello.protocol_oldest)
    return who + hello.nonce + hello.release.encode()


log = logging.getLogger("mq_broker.audit")

LINES_A_MINUTE_MAX: Final = 10
"""For each reason and broker. What is more is counted, and the next line says how many there were."""

_MINUTE_S: Final = 60.0
STRANGER: Final = 0
"""Whoever has proved nothing. The id that a stranger claims is no key: there would be as many as it likes."""


class Refusals:
    """What brokers refuse of those who call themselves brokers: counted, and told in the log without flooding it. Owns
    the counts. `clock`: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self._clock = clock
        # Since when, lines since then, left out since then
        self._lines: dict[tuple[str, int], tuple[float, int, int]] = {}

    def note(self, error: PeerRefused, broker: int = STRANGER) -> None:
        """It was refused. `broker`: who it was, if that is proved."""
        key = pb.PeerRefusal.Name(pb.PeerRefusal.ValueType(error.why)), broker
        self.counts[key] += 1
        now = self._clock()
        since, lines, left_out = self._lines.get(key, (now, 0, 0))
        if now - since >= _MINUTE_S:
            since, lines = now, 0
        if lines >= LINES_A_MINUTE_MAX:
            self._lines[key] = since, lines, left_out + 1
            return
        self._lines[key] = since, lines + 1, 0
        more = f" ({left_out} more like it before)" if left_out else ""
        who = f"broker {broker}" if broker else "somebody"
        log.warning("refused %s, %s: %s%s", who, key[0], error, more)
