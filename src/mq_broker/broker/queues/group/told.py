"""What members are told, and how it goes over the wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mq_broker.broker.queues.group.requests import Lent, LentRun
from mq_broker.broker.queues.policy.lending import Run
from mq_broker.core.work.ranges import Ranges, to_gaps
from mq_broker.core.work.settling import Answer
from mq_broker.core.work.state import NO_MARK
from mq_broker.core.work.steps import LeaseId
from mq_protocol import mq_pb2 as pb
from mq_protocol.queues.settings import Order
from mq_protocol.wire.error_messages import to_wire

_ORDERS: Final = {Order.NONE: pb.ORDER_NONE, Order.KEY: pb.ORDER_KEY, Order.ALL: pb.ORDER_ALL}


def told_of(runs: Iterable[Run]) -> tuple[LentRun, ...]:
    """With how often they were lent and how often they failed."""
    return tuple(LentRun(a, b, (mark or NO_MARK).deliveries + 1, (mark or NO_MARK).failures) for a, b, mark in runs)


def lent_to_wire(lent: Lent, number: int) -> pb.LeaseResponse:
    """`number`: of the member's last ack with outputs."""
    ranges: Ranges = tuple((run.first, run.end) for run in lent.runs)
    response = pb.LeaseResponse(
        ranges=to_gaps(ranges),
        deliveries=[run.deliveries for run in lent.runs],
        failures=[run.failures for run in lent.runs],
        lease_ms=lent.lease_ms,
        ready=lent.ready,
        number=number,
        order=_ORDERS[lent.order],
        order_by=lent.order_by,
    )
    if lent.lease is not None:
        response.lease.CopyFrom(lease_to_wire(lent.lease))
    return response


def answer_to_wire(answer: Answer) -> pb.SettleAnswer:
    told = pb.SettleAnswer(lost=to_gaps(answer.lost))
    for lease, ranges in answer.pulled:
        told.pulled.add(lease=lease_to_wire(lease), ranges=to_gaps(ranges))
    if answer.error is not None:
        told.error.CopyFrom(to_wire(answer.error))
    return told


def lease_to_wire(lease: LeaseId) -> pb.LeaseId:
    epoch, entry, step = lease
    return pb.LeaseId(leader_epoch=epoch, entry=entry, step=step)
