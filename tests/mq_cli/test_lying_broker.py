"""Commands that show what a broker says, and one that says what moves a cursor and forges lines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner

from mq_cli.main import cli
from mq_protocol import mq_pb2 as pb
from mq_protocol.methods import BROKER

# After what imports mq_client, which tells gRPC how to fork
import grpc  # isort: skip

EVIL = "\x1b]0;owned\x07\x1b[2J\nforged\u202e"


def answers(address: str) -> dict[str, Any]:
    return {
        "Metadata": pb.MetadataResponse(
            brokers=[pb.BrokerInfo(id=1, address=address, rack=EVIL, release=EVIL)],
            answered_by=1,
            coordination=EVIL,
            coordination_access=EVIL,
            security_floor=[EVIL],
            protocol=2,
            protocol_oldest=1,
        ),
        "SecurityFloor": pb.SecurityFloorResponse(demands=[EVIL]),
        "Revoked": pb.RevokedResponse(entries=[EVIL]),
    }


class Lying(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    address = ""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        name = details.method.rpartition("/")[2]
        answer = answers(self.address).get(name, BROKER.methods[name].response())
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer.SerializeToString())


@pytest.mark.parametrize(
    "words",
    [
        ["cluster", "status"],
        ["cluster", "status", "--json"],
        ["cluster", "security", "show"],
        ["cert", "revoke", "--list"],
    ],
    ids=" ".join,
)
def test_what_brokers_say_is_shown_without_what_a_terminal_obeys(words: list[str]) -> None:
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        lying = Lying()
        server.add_generic_rpc_handlers((lying,))
        lying.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            shown = CliRunner().invoke(cli, [*words, "--bootstrap", lying.address, "--timeout", "20"])
        finally:
            server.stop(None).wait()
    assert "owned" in shown.output, shown.output
    assert not [line for line in shown.output.splitlines() if not line.replace("\t", "").isprintable()]
    assert not any(line.startswith("forged") for line in shown.output.splitlines())
