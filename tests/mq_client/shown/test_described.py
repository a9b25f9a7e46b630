"""What applications get of a row of the wire: the fields of the same names, of the types that are promised."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_origin, get_type_hints

import pytest

import mq_client
from mq_client.shown.described import described
from mq_protocol import mq_pb2 as pb

ROWS: list[tuple[type, Any, set[str]]] = [
    (mq_client.AbortedTransaction, pb.AbortTransactionResponse(), {"query", "sink"}),
    (mq_client.AclChange, pb.AlterAclsResponse(), {"late", "not_judging"}),
    (mq_client.AclVerdict, pb.CheckAclResponse(), {"rule"}),
    (mq_client.BrokerDescription, pb.BrokerInfo(), set()),
    (mq_client.BrokerObservation, pb.ObserveResponse(), {"id", "address"}),
    (mq_client.ClusterDescription, pb.MetadataResponse(), {"brokers"}),
    (mq_client.GroupCursor, pb.GroupCursor(), set()),
    (mq_client.GroupObservation, pb.ObservedGroup(), set()),
    (mq_client.PartitionDescription, pb.PartitionInfo(), set()),
    (mq_client.PartitionMove, pb.PartitionMove(), set()),
    (mq_client.PartitionObservation, pb.ObservedPartition(), {"told_by"}),
    (mq_client.QueueInfo, pb.QueueInfo(), {"settings"}),
    (mq_client.QueueMember, pb.QueueMember(), set()),
    (
        mq_client.QueuePartition,
        pb.QueuePartition(),
        {"begun", "dropped", "members", "blocked_by", "blocked_by_key"},
    ),
    (mq_client.QueueRun, pb.QueueRun(), {"partition", "state"}),
    (mq_client.QuotaDescription, pb.Quota(), {"built_in"}),
    (mq_client.Recovery, pb.RecoverResponse(), {"broker", "next_offset"}),
    (mq_client.SecurityFloor, pb.SecurityFloorResponse(), {"offers"}),
    (mq_client.StagedSum, pb.StagedSum(), set()),
    (mq_client.TopicDescription, pb.TopicInfo(), {"schema", "partitions"}),
    (mq_client.TopicObservation, pb.ObservedTopic(), set()),
    (mq_client.TransactionDescription, pb.KnownTransaction(), {"staged", "silent", "left_out"}),
    (mq_client.Upgrade, pb.UpgradeResponse(), {"brokers"}),
]


@pytest.mark.parametrize(("kind", "message", "others"), ROWS, ids=[kind.__name__ for kind, *_ in ROWS])
def test_every_field_is_the_messages_of_that_name_and_type(kind: Any, message: Any, others: set[str]) -> None:
    """`others`: fields that the message has not, or has otherwise."""
    given: dict[str, Any] = dict.fromkeys(others)
    hints, found = get_type_hints(kind), described(kind, message, **given)
    assert {each.name for each in fields(kind) if not hasattr(message, each.name)} <= others
    for name in hints.keys() - others:
        is_a = get_origin(hints[name]) or hints[name]
        assert isinstance(getattr(found, name), is_a), name


def test_lists_become_tuples_and_maps_dicts_in_order() -> None:
    found = described(
        mq_client.PartitionDescription,
        pb.PartitionInfo(partition=3, replicas=[2, 1], unheard_ms={5: 7, 1: 9}),
        isr=(4,),
    )
    assert (found.partition, found.replicas, found.isr, found.moving_to) == (3, (2, 1), (4,), ())
    assert list(found.unheard_ms.items()) == [(1, 9), (5, 7)]


def test_a_field_that_is_nowhere_is_missing() -> None:
    with pytest.raises(TypeError, match="'id'"):
        described(mq_client.BrokerObservation, pb.ObserveResponse(), address="b:1")
