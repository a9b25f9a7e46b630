"""What applications import: taking a name away is a decision, not an accident."""

from __future__ import annotations

import inspect

import pytest

import mq_client
from mq_protocol import errors

NAMES = {
    "Admin", "Producer", "Consumer", "Reader", "Rows", "Lock", "Security", "SecurityFloor",
    "Secret", "NewApiToken", "ApiTokenDescription", "TokenUser",
    "OutgoingRecord", "RecordMetadata", "BatchMetadata", "BatchPlace", "ConsumerRecord", "RecordQueue", "Skipped",
    "PartitionMove", "Recovery", "Upgrade",
    "TopicDescription", "TopicMade", "PartitionDescription",
    "ClusterDescription", "BrokerDescription", "GroupDescription", "GroupCursor",
    "ClusterObservation", "BrokerObservation", "TopicObservation", "PartitionObservation", "GroupObservation",
    "TransactionDescription", "StagedSum", "AclChange",
    "AclRule",
    "AclVerdict",
    "AbortedTransaction", "GivenTransaction",
    "Queue", "LeasedRecord", "LeasedBatch", "LeaseId", "Outputs",
    "QuotaDescription", "QueueDescription", "QueueInfo", "QueueMember", "QueuePartition", "QueueRun", "Redriven",
    "NotDeserialized",
    "NotSent",
}  # fmt: skip

METHODS = {
    "Admin": (
        "create_topic create_topics list_topics describe_topic alter_topic delete_topic describe_cluster offsets "
        "move_partition cancel_move moves start_moves plan_drain plan_balance needed_by transfer_leadership "
        "recover_partition transactions abort_transaction give_transaction upgrade_cluster "
        "declare_queue alter_queue list_queues describe_queue pause_queue resume_queue purge_queue redrive_queue "
        "redrive_topic delete_queue peek_queue pop_queue queue_records scheduled observe describe_topics set_log_level "
        "quotas set_quotas delete_quotas create_user delete_user token_users create_token revoke_token "
        "security_floor raise_security_floor lower_security_floor"
    ),
    "Producer": "publish publish_batch publish_many cancel flush close",
    "Consumer": "subscribe unsubscribe subscription start stop records",
    "Reader": "read rows",
    "Rows": "batches to_arrow to_pandas",
    "Queue": "take batches pop peek outputs close",
    "Outputs": "publish publish_batch",
    "LeasedRecord": "ack fail release reject extend",
    "LeasedBatch": "ack fail release reject extend to_pandas",
    "Lock": "acquire release",
}


def test_every_promised_name_is_there_and_no_other() -> None:
    kinds = {name for name, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.TritonMQError)}
    kinds.remove("PeerRefused")  # brokers say that to each other, never to a client
    assert set(mq_client.__all__) == NAMES | kinds
    assert len(mq_client.__all__) == len(set(mq_client.__all__))
    assert all(hasattr(mq_client, name) for name in mq_client.__all__)


@pytest.mark.parametrize("cls", METHODS)
def test_every_promised_method_is_there_with_a_docstring(cls: str) -> None:
    for method in METHODS[cls].split():
        found = getattr(getattr(mq_client, cls), method)
        assert callable(found)
        assert found.__doc__
