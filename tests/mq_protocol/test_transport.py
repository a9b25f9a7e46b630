"""Both ends of the wire understand a gRPC status in one way, and whoever has other credentials has other
connections."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from mq_client.cluster import channels
from mq_client.cluster.channels import NOBODY, Client
from mq_protocol import errors
from mq_protocol.errors import InternalError, InvalidRequest, NotLeader, OutcomeUnknown, TritonMQError, Unreachable
from mq_protocol.transport import ERROR_METADATA, MEANINGS, from_call, to_call
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
        ("UNIMPLEMENTED", InvalidRequest),
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
