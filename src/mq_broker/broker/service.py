"""What the gRPC service calls: each request handed to the part that owns what it is about."""

from __future__ import annotations

from mq_broker.broker.administration.moves import Moves
from mq_broker.broker.administration.purging import Purging
from mq_broker.broker.administration.recovery import TotalLoss
from mq_broker.broker.administration.topics import Admin
from mq_broker.broker.data.fetch import Reading
from mq_broker.broker.data.produce import Producing
from mq_broker.broker.groups.cursors import Groups
from mq_broker.broker.groups.subscriptions import Delivery
from mq_broker.broker.locks import Locks
from mq_broker.broker.transactions.aborting import Aborting
from mq_broker.broker.transactions.coordinator import Transactions


class Services:
    """Owns nothing but the parts. Is the `rpc.service.BrokerService`, and the `rpc.peer_service.PeerService`."""

    def __init__(
        self,
        admin: Admin,
        moves: Moves,
        total_loss: TotalLoss,
        producing: Producing,
        reading: Reading,
        delivery: Delivery,
        groups: Groups,
        transactions: Transactions,
        purging: Purging,
        aborting: Aborting,
        locks: Locks,
    ) -> None:
        self.metadata = admin.metadata
        self.create_topic = admin.create_topic
        self.delete_topic = admin.delete_topic
        self.alter_topic = admin.alter_topic
        self.plan_moves = moves.plan_moves
        self.start_moves = moves.start_moves
        self.moves = moves.moves
        self.lead = moves.lead
        self.replica_status = total_loss.replica_status
        self.recover = total_loss.recover
        self.list_offsets = reading.list_offsets
        self.move_cursors = groups.move_cursors
        self.groups = groups.groups
        self.delete_group = groups.delete_group
        self.purge = purging.purge
        self.decide = transactions.decide
        self.publish = transactions.publish
        self.discard = transactions.discard
        self.transaction_status = transactions.transaction_status
        self.staged = transactions.staged
        self.are_staged = transactions.are_staged
        self.transactions = aborting.transactions
        self.abort_transaction = aborting.abort_transaction
        self.abort_key = aborting.abort_key
        self.fence = aborting.fence
        self.produce = producing.produce
        self.fetch = reading.fetch
        self.subscribe = delivery.subscribe
        self.watch_offsets = reading.watch_offsets
        self.lock = locks.lock
