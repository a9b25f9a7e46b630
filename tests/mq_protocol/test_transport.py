"""Both ends of the wire understand a gRPC status in one way, and whoever has other credentials has other
connections."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from mq_broker.rpc import calls, links, server, status
from mq_client.cluster import channels, credentials
from mq_client.cluster.channels import NOBODY, Client
from mq_client.consuming import push_streams
from mq_protocol import errors, transport
from mq_protocol.errors import InternalError, NotLeader, OutcomeUnknown, TritonMQError, Unreachable
from mq_protocol.transport import ERROR_METADATA, MEANINGS, MethodUnknown, from_call, to_call
from tests.securing import Certs


class Ended:
    """A call that ended so."""

    def __init__(self, status: grpc.StatusCode, metadata: Any = None) -> None:
        self._status, self._metadata = status, metadata

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str:
        return "because"

    def trailing_metadata(self) -> Any:
        return self._metadata


def test_every_status_of_grpc_has_a_meaning_and_nothing_else_has() -> None:
    assert set(MEANINGS) == {code.name for code in grpc.StatusCode}


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        ("UNAVAILABLE", Unreachable),
        ("CANCELLED", Unreachable),
        ("INTERNAL", Unreachable),
        ("UNKNOWN", Unreachable),
        ("ABORTED", Unreachable),
        ("DEADLINE_EXCEEDED", OutcomeUnknown),
        ("UNIMPLEMENTED", MethodUnknown),
        ("PERMISSION_DENIED", InternalError),
    ],
)
def test_a_status_without_an_error_says_what_is_known_of_the_request(code: str, meaning: type[TritonMQError]) -> None:
    error = from_call(Ended(grpc.StatusCode[code]), "host:1")
    assert type(error) is meaning
    assert "broker at host:1" in str(error)


def test_what_may_have_been_heard_is_never_said_to_have_been_refused() -> None:
    refused = {code for code, (meaning, _) in MEANINGS.items() if meaning.definite}
    assert refused == {"UNIMPLEMENTED"}


def test_every_error_crosses_a_call_and_comes_back_equal() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TritonMQError)]
    for kind in [each for each in classes if "code" in vars(each) and each is not TritonMQError]:
        code, details, metadata = to_call(kind("do this next"))
        again = from_call(Ended(grpc.StatusCode[code], metadata), "host:1")
        assert (type(again), str(again), details) == (kind, "do this next", "do this next")


def test_an_error_that_cannot_be_read_leaves_the_status() -> None:
    ended = Ended(grpc.StatusCode.UNAVAILABLE, ((ERROR_METADATA, b"\xff\xff"),))
    assert type(from_call(ended, "host:1")) is Unreachable
    known = Ended(grpc.StatusCode.UNAVAILABLE, to_call(NotLeader("2 leads", 2, 7))[2])
    assert type(from_call(known, "host:1")) is NotLeader


def test_both_ends_use_the_one_table_and_the_same_options() -> None:
    assert calls.from_call is links.from_call is channels.from_call is transport.from_call  # type: ignore[attr-defined]
    assert status.to_call is transport.to_call  # type: ignore[attr-defined]
    options = [module.CHANNEL_OPTIONS for module in (server, channels, push_streams)]  # type: ignore[attr-defined]
    assert all(each is transport.CHANNEL_OPTIONS for each in options)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certs:
    return Certs(tmp_path_factory.mktemp("cluster") / "certs")


def test_clients_with_other_credentials_share_no_connection(certs: Certs) -> None:
    mine, theirs = certs.user("mine"), certs.user("theirs")
    one = Client(("127.0.0.1:1",), mine)
    opened = channels.channel("127.0.0.1:1", one)
    assert channels.channel("127.0.0.1:1", Client(("127.0.0.1:1",), mine)) is opened
    others = [Client(("127.0.0.1:1",), theirs), Client(("127.0.0.1:1",)), NOBODY]
    assert opened not in [channels.channel("127.0.0.1:1", other) for other in others]


def test_a_replaced_certificate_has_another_connection_and_the_former_ends_later(
    certs: Certs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "LOOK_S", 0.0)
    monkeypatch.setattr(channels, "_replaced", [])
    me = Client(("127.0.0.1:1",), certs.user("renewed"))
    opened = channels.channel("127.0.0.1:1", me)
    certs.authority.client("renewed").write(certs.path, "client.renewed")
    assert channels.channel("127.0.0.1:1", me) is not opened
    assert [former for _, former in channels._replaced] == [opened]
    channels._replaced[:] = [(0.0, opened)]
    channels.channel("127.0.0.1:1", me)
    assert channels._replaced == []
    with pytest.raises(ValueError, match="closed"):
        opened.unary_unary("/x")(b"")


def test_pushes_to_clients_with_other_credentials_share_no_connection(certs: Certs) -> None:
    loop = push_streams.this_process()
    mine, theirs = certs.user("mine"), certs.user("theirs")

    async def opened() -> list[Any]:
        clients = [Client(("b:1",), mine), Client(("b:1",), mine), Client(("b:1",), theirs), NOBODY]
        found = []
        for client in clients:
            with loop.channel("127.0.0.1:1", client) as channel:
                found.append(channel)
        return found

    same, again, other, nobody = asyncio.run_coroutine_threadsafe(opened(), loop._loop).result(30)
    assert same is again
    assert len({id(same), id(other), id(nobody)}) == 3
