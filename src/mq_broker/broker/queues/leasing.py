"""The methods by which members work: Lease and Settle. What they are told is decided elsewhere (gathering.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from mq_broker.broker.queues.asked import Asked, check_epochs, lease_of
from mq_broker.broker.queues.group.requests import Asking
from mq_broker.broker.queues.group.told import answer_to_wire, lent_to_wire
from mq_broker.broker.queues.lent_rows import lent_rows
from mq_broker.broker.queues.letters.outputs import Outputs, last_number
from mq_broker.broker.queues.working import Working
from mq_broker.core.work.settling import Answer
from mq_broker.rpc.callers import own_member
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, TritonMQError
from mq_protocol.limits import REQUEST_TIMEOUT_MS
from mq_protocol.names import check_member_key

_BEFORE_DEADLINE_S: Final = 0.5
"""So long before a request's deadline it is answered that nothing was ready: the answer takes its time, too."""


class Leasing:
    """What members ask. Owns nothing."""

    def __init__(self, asked: Asked, working: Working, outputs: Outputs) -> None:
        self._asked = asked
        self._working = working
        self._outputs = outputs

    async def lease(self, request: pb.LeaseRequest, deadline: float) -> pb.LeaseResponse:
        """Lend the member what is ready, once the lease is committed. What it settles and its leases that it does not
        name are settled and returned first."""
        check_member_key(request.member_key)
        partition, member = await self._asked.partition(request), own_member(request.member)
        held = dict.fromkeys(map(lease_of, request.held), ())
        check_epochs(partition, held.keys())
        await self._asked.check_terms(partition, request)
        asking = Asking(
            member,
            request.member_key,
            request.records_max,
            bytes_max=request.bytes_max,
            lease_ms=request.lease_ms,
            accept=request.accept,
            held=held,
            working=request.working,
            priority=request.priority,
            watches=bool(request.wait_ms),
            leaving=request.leaving,
            filter_text=request.filter,
        )
        answers: Sequence[Answer] = ()
        if request.settles:
            if any(each.outputs or each.number or each.outcome == pb.OUTCOME_EXTEND for each in request.settles):
                raise InvalidRequest("outputs and extensions go by Settle: leave them out of Lease")
            items = await self._asked.items(partition, request.group, member, request.settles)
            answers, lent = await self._working.settled_and_lent(partition, request.group, items, asking, deadline)
        else:
            now = asyncio.get_running_loop().time()
            wait_until = min(now + request.wait_ms / 1000, deadline - _BEFORE_DEADLINE_S)
            lent = await self._working.lent(partition, request.group, asking, wait_until, deadline)
        # A process that took the place of another goes on with its numbers. That one's leases have ended by now, so it
        # has no further ones.
        response = lent_to_wire(lent, last_number(partition, request.group, member))
        response.answers.extend(map(answer_to_wire, answers))
        rows = lent_rows(partition, [(run.first, run.end) for run in lent.runs], request.rows_bytes_max)
        response.batches.extend(described for described, _ in rows)
        response.payload = b"".join(payload for _, payload in rows)
        return response

    async def settle(self, request: pb.SettleRequest, deadline: float) -> pb.SettleResponse:
        """What became of each of these, once it is committed. A request that cannot be right is refused whole. Outputs
        that cannot be published are refused by themselves."""
        partition, member = await self._asked.partition(request), own_member(request.member)
        items = await self._asked.items(partition, request.group, member, request.settles)
        timeout_ms = min(request.timeout_ms or REQUEST_TIMEOUT_MS, REQUEST_TIMEOUT_MS)
        until = min(deadline, asyncio.get_running_loop().time() + timeout_ms / 1000)
        refused: dict[int, Answer] = {}
        for number, settle in enumerate(request.settles):
            if settle.outputs:
                try:
                    await self._outputs.check(partition, request.group, member, settle, until)
                except TritonMQError as error:
                    refused[number] = Answer(error=error)
        judged = [item for number, item in enumerate(items) if number not in refused]
        answers = iter(await self._working.settled(partition, request.group, judged, until))
        return pb.SettleResponse(
            answers=[answer_to_wire(refused[n] if n in refused else next(answers)) for n in range(len(items))]
        )
