"""The requests of a member that asks, rather than being pushed its records. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mq_client.queueing.answered_rows import ROWS_BYTES_MAX
from mq_client.queueing.places import WATCH_MS, Place, Question, Terms
from mq_client.queueing.settling import Line, to_wire
from mq_protocol import mq_pb2 as pb


def lease_request(
    question: Question, terms: Terms, topic_id: str, working: int, lines: Sequence[Line], *, closing: bool
) -> pb.LeaseRequest:
    """`lines`: outcomes that it tells at once. `closing`: the member asks no more."""
    place = question.place
    return pb.LeaseRequest(
        topic=terms.topic,
        partition=place.partition,
        group=terms.group,
        topic_id=topic_id,
        member=terms.member,
        member_key=terms.key,
        records_max=question.records,
        bytes_max=question.bytes,
        wait_ms=WATCH_MS if question.waits else 0,
        lease_ms=terms.lease_ms,
        accept=terms.accept,
        held=[] if closing and place.quiet else [name.to_wire() for name in place.leases],
        working=working,
        settles=to_wire(lines),
        rows_bytes_max=ROWS_BYTES_MAX if question.records else 0,
        priority=terms.priority,
        leaving=closing,
        filter="" if closing else terms.filter,
    )


def settle_request(
    place: Place, terms: Terms, topic_id: str, lines: Sequence[Line], timeout_ms: int
) -> pb.SettleRequest:
    return pb.SettleRequest(
        topic=terms.topic,
        partition=place.partition,
        group=terms.group,
        topic_id=topic_id,
        member=terms.member,
        settles=to_wire(lines),
        timeout_ms=timeout_ms,
    )
