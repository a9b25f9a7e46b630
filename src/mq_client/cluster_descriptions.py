"""What an administrator is told of the cluster's brokers and their versions."""

from __future__ import annotations

from dataclasses import dataclass

from mq_client.html import table


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A live broker. `incarnation` counts the lives of its process. `level` is the highest level of features that it
    knows."""

    id: int
    address: str
    incarnation: int
    rack: str
    release: str = ""
    level: int = 1


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """`coordination`: "connected", "suspended" or "file", as the broker that answered sees it. `level`: of features.
    `coordination_access`: who may read and write what ZooKeeper keeps: "open" (everybody who reaches it), "closing" or
    "closed" (the brokers alone); empty where there is no ZooKeeper.
    `security_floor`: what the cluster demands of each broker. `insecure_brokers`: those that other machines reach in
    plain text, also if whoever asks is not told their addresses."""

    brokers: tuple[BrokerDescription, ...]
    coordination: str
    answered_by: int
    level: int = 1
    coordination_access: str = ""
    security_floor: tuple[str, ...] = ()
    insecure_brokers: tuple[int, ...] = ()

    def _repr_html_(self) -> str:
        rows = [(b.id, b.address, b.incarnation, b.rack, b.release, b.level) for b in self.brokers]
        title = f"{len(self.brokers)} live brokers, level of features {self.level}, coordination {self.coordination}"
        return table(title, ("broker", "address", "incarnation", "rack", "release", "level"), rows)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """`level`: the cluster's level of features now. `target`: the highest that every registered broker knows. `absent`:
    brokers that hold replicas and are not registered, so that nobody knows their release."""

    level: int
    target: int
    brokers: tuple[BrokerDescription, ...]
    absent: tuple[int, ...]
