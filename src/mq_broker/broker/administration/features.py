"""The cluster's level of features: what it is, and raising it once every broker knows the next one.

Leaders write no kind of entry above the level, so that brokers of the last release can read everything. It is never
lowered: from then on a broker that does not know it is treated as if it were not registered (`metadata/brokers.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.metadata.topics import Topics
from mq_broker.coordination.interface import BrokerRegistration
from mq_broker.coordination.service import CoordinationService
from mq_broker.rpc.callers import client_port
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import IncompatibleVersion

log = logging.getLogger(__name__)


def describe_broker(registration: BrokerRegistration, into: pb.BrokerInfo) -> None:
    """The broker as clients are told of it: with the address that is of use to who asks."""
    into.id, into.incarnation = registration.broker, registration.incarnation
    into.address = registration.address_for(client_port())
    into.rack = registration.rack
    versions = registration.versions
    into.release, into.level = versions.release, versions.level
    into.protocol, into.protocol_oldest = versions.protocol, versions.protocol_oldest


def absent_holders(topics: Topics, registered: Collection[int]) -> list[int]:
    """Brokers that hold replicas and are not registered."""
    holders = {broker for topic in topics.all() for replicas in topic.spec.assignment for broker in replicas}
    return sorted(holders.difference(registered))


class Features:
    """Owns nothing: the level is in the coordination service."""

    def __init__(self, cluster: Cluster, topics: Topics, coordination: CoordinationService) -> None:
        self._cluster = cluster
        self._topics = topics
        self._coordination = coordination

    async def upgrade(self, request: pb.UpgradeRequest, deadline: float) -> pb.UpgradeResponse:
        """Raise the level as far as every registered broker knows; with `plan` only say so. Raises
        `IncompatibleVersion` while brokers that hold replicas are not registered, unless it is forced;
        `CoordinationUnavailable`."""
        level = await self._coordination.level()
        brokers = await self._coordination.brokers()
        target = max(level, min((each.versions.level for each in brokers.values()), default=level))
        response = pb.UpgradeResponse(level=level, target=target, absent=absent_holders(self._topics, brokers))
        for broker in sorted(brokers):
            describe_broker(brokers[broker], response.brokers.add())
        if request.plan or target == level:
            return response
        if response.absent and not request.force:
            raise IncompatibleVersion(
                f"brokers {list(response.absent)} hold replicas and are not registered, so nobody knows their release: "
                "start them, or use --force. With --force they can join again only with a release that knows level "
                f"{target}"
            )
        response.level = await self._coordination.raise_level(target)
        log.warning("the cluster's level of features was raised from %d to %d", level, response.level)
        self._cluster.read_again()
        return response
