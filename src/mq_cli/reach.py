"""Whether anybody listens where a command is about to ask: known at once, where a client of the cluster would go on
asking."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import click

REFUSED_S: Final = 1.0
"""For so long it is tried again after each address has refused: a broker that is being restarted is back within it."""

_PAUSE_S: Final = 0.1


def check_somebody_listens(addresses: Sequence[str]) -> None:
    """Raise `click.ClickException` if every address has refused a connection, or has no such host, for `REFUSED_S`.

    An address that does not answer at all may be far away or busy: it is left to the client, which waits longer. Where
    there is a tunnel, it is looked at instead.
    """
    from mq_client.cluster.listening import why_unreachable
    from mq_client.cluster.tunnels import given_via

    deadline = time.monotonic() + REFUSED_S
    if via := given_via(None):
        _check_tunnel(addresses, via, deadline)
        return
    while True:
        reasons: dict[str, str] = {}
        for address in addresses:
            reason = why_unreachable(address)
            if reason is None:
                return
            reasons[address] = reason
        if time.monotonic() >= deadline:
            told = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
            raise click.ClickException(
                f"no broker listens at {told}\n"
                "Start one with `tritonmq dev`, or say where yours are: --bootstrap HOST:PORT or TRITONMQ_BOOTSTRAP"
            )
        time.sleep(_PAUSE_S)


def _check_tunnel(addresses: Sequence[str], via: str, deadline: float) -> None:
    from mq_client.cluster.tunnels import fault_of_all

    while (fault := fault_of_all(addresses, via, silence=False)) is not None:
        if time.monotonic() >= deadline:
            raise click.ClickException(f"no broker was asked: {fault}")
        time.sleep(_PAUSE_S)
