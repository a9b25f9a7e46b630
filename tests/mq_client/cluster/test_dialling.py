"""Making a connection: what answers as no broker does, and what is told of it. The test is the broker."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mq_client.cluster import dialling
from mq_client.cluster.client import NOBODY, Client
from mq_client.cluster.credentials import current
from mq_client.cluster.dialling import by_openssl, call_open, dial, fault, why_none
from mq_client.cluster.lines import call_unary
from mq_client.errors import IncompatibleVersion, Overloaded, TritonMQError, Unreachable
from mq_client.security import Security
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import CA_FILE, context, files_of_broker, read
from mq_protocol.access.secrets import new_api_token
from mq_protocol.wire.framing import STREAM, preamble
from tests.played_broker import HOST, WAIT_S, Spoken, played
from tests.securing import Certs


def ends(spoken: Spoken) -> None:
    """Says nothing, and ends the connection."""


def told(address: str, client: Client = NOBODY) -> TritonMQError:
    with pytest.raises(TritonMQError) as raised:
        dial(address, client, current(client.security), by_openssl, 2.0)
    return raised.value


@pytest.mark.parametrize(
    ("greeting", "is_other"),
    [
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05", True),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True),
        (preamble(), True),
        (b"", False),
        (b"\x93TMS", False),
    ],
)
def test_what_does_not_begin_as_a_broker_does_is_none(greeting: bytes, is_other: bool) -> None:
    with played(ends, greeting=greeting) as at:
        error = told(at.address)
        assert isinstance(error, Unreachable)
        found = fault(error, at.address, NOBODY)
        assert ("so it is another port" in (found or "")) is is_other
        assert (found is None) is not is_other


def test_a_port_that_refuses_and_one_that_says_nothing_may_be_brokers_soon() -> None:
    with socket.create_server((HOST, 0)) as taken:
        closed = f"{HOST}:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match="timed out") as silent:
            dial(closed, NOBODY, current(None), by_openssl, 0.2)
    refused = told(closed)
    assert "Connection refused" in str(refused)
    assert fault(silent.value, closed, NOBODY) is None
    assert fault(refused, closed, NOBODY) is None


def test_what_a_broker_says_before_it_is_asked_is_raised() -> None:
    def full(spoken: Spoken) -> None:
        spoken.close_with(Overloaded("too many connections"))

    with played(full) as at, pytest.raises(Overloaded, match="too many connections"):
        call_unary(at.address, "Metadata", pb.MetadataRequest(), pb.MetadataResponse, WAIT_S)
    with played(ends, greeting=preamble(newest=9, oldest=9, spoken=STREAM)) as at:
        assert isinstance(told(at.address), IncompatibleVersion)


def test_why_certificates_are_of_no_use_is_told(tmp_path: Path) -> None:
    certs, others = Certs(tmp_path / "certs", 1), Certs(tmp_path / "others", 1)
    tls = context(read(files_of_broker(certs.path, 1)), server=True)
    etl, stranger = Client((), certs.user("etl")), Client((), others.user("etl"))
    with played(ends) as at:
        assert "it speaks plain text, and this client TLS" in (why_none(at.address, etl) or "")
    with played(ends, tls=tls) as at:
        assert why_none(at.address, etl) is None
        assert "it speaks TLS, and this client plain text" in (why_none(at.address, NOBODY) or "")
        assert "an authority signed it that is not in ca.crt" in (why_none(at.address, stranger) or "")
        port = at.address.rpartition(":")[2]
        assert f"it is for another host ({HOST}), and not for localhost" in (why_none(f"localhost:{port}", etl) or "")
        mixed = certs.path.with_name("mixed")
        mixed.mkdir()
        (mixed / CA_FILE).write_bytes(certs.ca)
        for name in ("client.etl.crt", "client.etl.key"):
            (mixed / name).write_bytes((others.path / name).read_bytes())
        found = why_none(at.address, Client((), Security(mixed, "etl"))) or ""
        assert "client.etl.crt" in found


def test_a_token_is_shown_over_tls_alone(tmp_path: Path) -> None:
    certs, token = Certs(tmp_path / "certs", 1), new_api_token()[1]
    client = Client((), Security(ca=certs.path / CA_FILE, token=token.reveal()))
    with played(ends) as at:
        assert "a token is sent over TLS alone" in (why_none(at.address, client) or "")
    opened = call_open("Metadata", "b:1", client, current(client.security), 0.5)
    assert (opened.token, opened.timeout_ms) == (token.reveal(), 500)
    assert call_open("Produce", "b:1", NOBODY, current(None)).token == ""
    assert call_open("Metadata", "b:1", NOBODY, current(None), 1e9).timeout_ms == (1 << 32) - 1


def test_an_entry_that_is_not_reached_is_left_for_the_next_one() -> None:
    with socket.create_server((HOST, 0)) as taken:
        closed = f"{HOST}:{taken.getsockname()[1]}"
    with played(ends) as at:
        client = Client((closed, at.address), forward=True)
        assert client.dialled("hidden:1") == closed
        error = told("hidden:1", client)
        assert f"broker at hidden:1 (passed on by {closed}) cannot be reached" in str(error)
        assert client.dialled("hidden:1") == at.address
        connection, _ = dial("hidden:1", client, current(None), dialling.by_openssl)
        connection.close()
