"""Commands that show what a broker says, and one that says what moves a cursor and forges lines."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from mq_cli.main import cli
from mq_protocol import mq_pb2 as pb
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import Kind
from tests.played_broker import Spoken, played

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


def lies(spoken: Spoken) -> None:
    address = "{}:{}".format(*spoken.socket.getsockname())
    while spoken.hear_call() is not None:
        name = spoken.opened.method
        spoken.answer(answers(address).get(name, BROKER.methods[name].response()))
        spoken.say(Kind.END)


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
    with played(lies) as lying:
        shown = CliRunner().invoke(cli, [*words, "--bootstrap", lying.address, "--timeout", "20"])
    assert "owned" in shown.output, shown.output
    assert not [line for line in shown.output.splitlines() if not line.replace("\t", "").isprintable()]
    assert not any(line.startswith("forged") for line in shown.output.splitlines())
