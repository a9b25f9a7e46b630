"""What is counted of the effects that a partition carries out."""

from __future__ import annotations

from mq_broker.core.messages import CasOutcome, NodeState, Published, RoleChanged
from mq_broker.measured import ISR_CHANGES, LEADERSHIPS, TOPIC_BYTES_IN, TOPIC_RECORDS_IN


def published(topic: str, epoch_start: int, effect: Published, *, taken_up: bool) -> None:
    """Count what became readable under this broker's leadership, and nothing else: what it learns as a follower others
    count, and a former leader may have counted what is before `epoch_start` (0: it does not lead). What was staged or
    scheduled before that is counted if it is published once the leadership is `taken_up`."""
    if epoch_start and (effect.index > epoch_start or taken_up):
        TOPIC_RECORDS_IN.add(topic, n=effect.record_count)
        TOPIC_BYTES_IN.add(topic, n=effect.payload_bytes)


def role_changed(led: bool, effect: RoleChanged) -> None:
    """`led`: before."""
    if effect.leading != led:
        LEADERSHIPS.add("taken" if effect.leading else "lost")


def node_written(before: tuple[int, ...], state: NodeState, outcome: CasOutcome) -> None:
    """`before`: the brokers in sync until this was written."""
    now = {broker for broker, _ in state.isr}
    if outcome is CasOutcome.DONE and len(now) != len(before):
        ISR_CHANGES.add("shrunk" if len(now) < len(before) else "expanded")
