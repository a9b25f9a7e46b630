"""What whoever makes an API token is told of brokers that take none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from mq_broker.broker.administration.rights.tokens import TokenSettings
from mq_broker.coordination.editing import Document
from mq_broker.coordination.interface import BrokerRegistration, SecurityDocuments
from mq_broker.core.messages import CasOutcome
from mq_broker.security.tokens import DOCUMENT, Tokens, load
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.secrets import digest_of, new_api_token


class Played:
    """A coordination service that keeps nothing, with brokers that have those ports over TLS."""

    def __init__(self, *ports: str) -> None:
        self._ports = ports
        self.security = self
        self.tokens = Document(DOCUMENT, load, Tokens(), "")

    async def brokers(self) -> Mapping[int, Any]:
        return {n: BrokerRegistration(n, 1, "h", tls_address=port) for n, port in enumerate(self._ports, 1)}

    async def read(self) -> SecurityDocuments:
        return SecurityDocuments()

    async def write(self, _changes: Mapping[str, Any]) -> tuple[CasOutcome, int]:
        return CasOutcome.DONE, 1

    async def refresh(self) -> None:
        pass

    def is_superuser(self, _name: str) -> bool:
        return False


@pytest.mark.parametrize(
    ("ports", "nowhere"), [((), True), (("", ""), True), (("", "h:1"), False), (("h:1", ""), False)]
)
def test_a_token_is_taken_somewhere_if_one_broker_of_several_has_a_port_for_it(
    ports: tuple[str, ...], nowhere: bool
) -> None:
    there: Any = Played(*ports)
    number, secret = new_api_token()
    token = pb.NewApiToken(id=number, sha256=digest_of(secret.reveal()), valid_s=60)
    request = pb.AlterTokensRequest(create_user="etl", token=token)
    told = asyncio.run(TokenSettings(there, there, there).alter_tokens(request, 0.0))
    assert (told.nowhere_taken, told.changed) == (nowhere, True)
