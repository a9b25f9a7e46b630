"""A key that is given to another user: a query goes on under a new user name, with its checkpoint.

A give is one entry of the key's coordinator, and nothing else. From its commit on the new owner alone decides under
the key, whoever leads. So it is done or it is not: a leader that is killed in the middle leaves nothing half done, and
asked again it answers the same.

Partitions need not hear of it. They do not know whose a key is. They know who has staged which batch, and that does not
change. A decision names only what the owner of its time has staged. What the former owner had staged and not decided is
lost to both: the new owner's run of that micro-batch stages its rows anew, and what lost is discarded once that is
published. What was decided before is published as ever.
"""

from __future__ import annotations

import logging
from typing import Final

from mq_broker.broker.host.shell import Shell
from mq_broker.broker.transactions.aborting import left_ms, meant, until
from mq_broker.broker.transactions.coordinator import Transactions
from mq_broker.broker.transactions.requests import key_of, key_to_wire, listed_name
from mq_broker.core.entries import Give, TransactionKey
from mq_broker.core.messages import Done
from mq_broker.rpc.callers import asker
from mq_broker.security.names import ANONYMOUS, Principal
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.errors import InvalidRequest, UnknownTransaction
from mq_protocol.names import quoted

log = logging.getLogger(__name__)

_KIND: Final = "User"


class Giving:
    """Owns nothing: whose a key is is in its coordinator's journal."""

    def __init__(self, shell: Shell, transactions: Transactions) -> None:
        self._shell = shell
        self._transactions = transactions

    async def give_transaction(self, request: pb.GiveTransactionRequest, deadline: float) -> pb.GiveTransactionResponse:
        """Give the key that a coordinator led here knows by that name. Idempotent. Raises `InvalidRequest` for an owner
        that nobody can be."""
        owner, deadline = new_owner(request.owner), until(request.timeout_ms, deadline)
        answer = pb.GiveTransactionResponse(known=False)
        for key in await self._keys(request.query, request.sink):
            asked = pb.GiveKeyRequest(key=key_to_wire(key), owner=owner, timeout_ms=left_ms(deadline))
            answer = await self._transactions.ask_coordinator(
                key, "GiveKey", asked, pb.GiveTransactionResponse, self.give_key, deadline
            )
            if answer.known:
                asker().note_allowed(
                    Operation.ALTER,
                    Kind.TRANSACTION,
                    listed_name(key.query_id),
                    f"{quoted(answer.former)} -> {quoted(owner)}",
                )
        return answer

    async def _keys(self, query: str, sink: str) -> list[TransactionKey]:
        known = {
            key: state.owner
            for partition in self._shell.partitions()
            if partition.serving
            for key, state in partition.replica.machine.transactions.items()
            if key.sink == sink
        }
        return await meant(known, query, Operation.ALTER, noting=True) if query else []

    async def give_key(self, request: pb.GiveKeyRequest, deadline: float) -> pb.GiveTransactionResponse:
        """Asked of the coordinator."""
        key, owner, deadline = key_of(request.key), new_owner(request.owner), until(request.timeout_ms, deadline)
        partition = await self._transactions.coordinator(key)
        try:
            done = await partition.ask(Give(key, owner), deadline)
        except UnknownTransaction:
            return pb.GiveTransactionResponse(known=False)
        assert isinstance(done, Done), "only a decision is answered otherwise"
        former = done.former  # as it was when this was applied: several may give the key at the same time
        if former != owner:
            log.warning(
                "query %s belonged to %s and was given to %s",
                listed_name(key.query_id),
                quoted(former) if former else "nobody",
                quoted(owner),
            )
        return pb.GiveTransactionResponse(known=True, former=former)


def new_owner(text: str) -> str:
    """`User:etl`, as owners are written. Raises `InvalidRequest` for what no user's name is."""
    if ":" not in text or text.endswith(":*"):
        raise InvalidRequest(f"{quoted(text)} names no user: write User:NAME")
    named = Principal.parse(text)
    if named.kind != _KIND:
        raise InvalidRequest(f"a transaction belongs to one user, and {quoted(text)} is none: write User:NAME")
    if named == ANONYMOUS:
        raise InvalidRequest(f"{ANONYMOUS} is everybody without a certificate, and owns nothing: name a user")
    return str(named)
