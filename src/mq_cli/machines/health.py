"""`tritonmq health`: does a broker live, and is it ready? For probes and scripts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mq_cli.commands import argument, command, flag, option
from mq_cli.connection import SECURITY, Connection
from mq_cli.output import say
from mq_cli.values import Seconds, checking_what_was_typed
from mq_process.patience import Patience
from mq_protocol.addresses import parse_address

if TYPE_CHECKING:
    from mq_client.cluster.client import Client

_ASK_S = 2.0
_AGAIN_S = 0.25


@command(short_help="Exit with 0 if a broker lives, or is ready.")
def health(
    address: str = argument("HOST:PORT"),
    ready: bool = flag("Ask whether it is ready: everything assigned to it is open and in sync."),
    wait_s: float = option(
        "Ask again for so long. Default: once.",
        "--wait",
        type=Seconds(min=0),
        default=0.0,
        metavar="SECONDS",
        show_default=False,
    ),
    connection: Connection = SECURITY,
) -> int:
    """Ask the broker at HOST:PORT, where clients connect, for its health. Exit status 1: it does not live, or is not
    ready.
    """
    from mq_client.cluster.client import Client

    with checking_what_was_typed():
        parse_address(address)
        client = Client((address,), connection.security)
    patience, deadline = Patience(say), time.monotonic() + wait_s
    while True:
        why = _why_not(address, client, ready=ready)
        if not why:
            say(f"{address} is ready" if ready else f"{address} lives")
            return 0
        if time.monotonic() >= deadline:
            say(f"{address}: {why}")
            return 1
        patience.waits_for(f"{address}: {why}")
        time.sleep(min(_AGAIN_S, max(0.0, deadline - time.monotonic())))


def _why_not(address: str, client: Client, *, ready: bool) -> str:
    from mq_client import TritonMQError
    from mq_client.cluster.dialling import fault
    from mq_client.cluster.lines import call_unary
    from mq_protocol import mq_pb2 as pb

    try:
        answer = call_unary(address, "Metadata", pb.MetadataRequest(), pb.MetadataResponse, _ASK_S, client)
    except TritonMQError as error:
        return fault(error, address, client) or str(error)
    return answer.not_ready if ready else ""
