"""The security floor: what the cluster demands of each of its brokers. Pure.

One document says it, `{"demands": ["authorize", "tls"]}`. A broker that does not offer all of it does not start, stops
if it runs, and takes no part. So one broker that is started wrongly does not open the cluster. Only an administrator
lowers the floor.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Final

from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, shortened
from mq_protocol.names import did_you_mean, quoted

DOCUMENT: Final = "floor"
DEMANDS_MAX: Final = 100
DEMAND_CHARACTERS_MAX: Final = 100

_ERROR_BYTES_MAX: Final = 500


class Demand(StrEnum):
    """`TLS`: no port is in plain text. `AUTHORIZE`: rights are judged. `ZK_AUTH`: the
    broker has a credential for ZooKeeper, and the nodes there are the brokers' alone."""

    TLS = "tls"
    AUTHORIZE = "authorize"
    ZK_AUTH = "zk_auth"


_HOW: Final = {
    Demand.TLS: "with --certs DIR and without --also-plaintext",
    Demand.AUTHORIZE: "with --certs DIR and without --also-plaintext, or with --authorize",
    Demand.ZK_AUTH: "with --zookeeper-auth FILE",
}


def parse_demand(text: str) -> Demand:
    """Raises `InvalidRequest`."""
    try:
        return Demand(text)
    except ValueError:
        raise InvalidRequest(
            f"nothing that the security floor can demand is called {quoted(text)}"
            f"{did_you_mean(text, list(map(str, Demand)))} (there are {', '.join(Demand)})"
        ) from None


def in_order(demands: Iterable[str]) -> list[str]:
    """As they are listed everywhere; those that this release does not know come last."""
    known = [str(each) for each in Demand]
    return sorted(demands, key=lambda each: (known.index(each) if each in known else len(known), each))


def how_to_offer(missing: Collection[str]) -> str:
    """How a broker is started that offers what is missing."""
    # Whoever offers TLS judges rights too, so that need not be said twice
    said_by_tls = Demand.AUTHORIZE if Demand.TLS in missing else None
    known = [_HOW[each] for each in Demand if each in missing and each is not said_by_tls]
    unknown = [each for each in missing if each not in _HOW]
    told = [f"start it {'; and '.join(known)}"] if known else []
    if unknown:
        told.append(f"{', '.join(map(quoted, unknown))} is unknown to this release: start a release that knows it")
    return "; ".join(told)


def dump(demands: Iterable[str]) -> bytes:
    return json.dumps({"demands": in_order(demands)}, separators=(",", ":")).encode()


def load(data: bytes) -> frozenset[str]:
    """What is demanded, also what only a newer release knows. Raises `CoordinationUnavailable`, which says what is
    wrong with the document."""
    try:
        document = json.loads(data)
        demands = document["demands"]
        if document.keys() != {"demands"} or not isinstance(demands, list) or len(demands) > DEMANDS_MAX:
            raise ValueError("it is no list of demands")
        if not all(isinstance(each, str) and 0 < len(each) <= DEMAND_CHARACTERS_MAX for each in demands):
            raise ValueError("a demand is no name")
        return frozenset(demands)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CoordinationUnavailable(
            f"the security document {DOCUMENT} is not one that this version knows "
            f"({shortened(repr(error), _ERROR_BYTES_MAX)}): put back what was there, or start a release that knows it"
        ) from error
