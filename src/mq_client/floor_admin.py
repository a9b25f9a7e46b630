"""The security floor as an administrator sees it. `Admin` offers this as its methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.described import described
from mq_protocol import mq_pb2 as pb


@dataclass(frozen=True, slots=True)
class SecurityFloor:
    """What the cluster demands of each broker: `tls`, `authorize`, `zk_auth`. `before`: the change. `offers`: what each
    registered broker offers, by its id. `absent`: brokers that hold replicas and are not registered.
    `coordination_access`: as in `ClusterDescription`."""

    demands: tuple[str, ...]
    before: tuple[str, ...]
    offers: Mapping[int, tuple[str, ...]]
    absent: tuple[int, ...]
    coordination_access: str

    @property
    def can_demand(self) -> tuple[str, ...]:
        """What every registered broker offers, and is not demanded yet."""
        offers = list(self.offers.values())
        common = [each for each in offers[0] if all(each in other for other in offers)] if offers else []
        closed = self.coordination_access == "closed"
        return tuple(each for each in common if each not in self.demands and (each != "zk_auth" or closed))


class FloorAdministrator:
    """A part of `Admin`, which gives it its connection."""

    _connection: Connection
    _timeout_ms: float

    def security_floor(self) -> SecurityFloor:
        """What is demanded, and what each broker offers. Raises `PermissionDenied`."""
        answer = self._connection.ask_any(
            "SecurityFloor", pb.SecurityFloorRequest(), pb.SecurityFloorResponse, Deadline(self._timeout_ms)
        )
        return _floor(answer)

    def raise_security_floor(self, *demands: str, force: bool = False) -> SecurityFloor:
        """Demand these of every broker from now on: one that does not offer them does not start, and stops if it runs.

        Raises `InvalidRequest` unless every registered broker offers them; also while brokers that hold replicas are
        not registered, unless `force`. `PermissionDenied`.
        """
        return self._alter(add=demands, force=force)

    def lower_security_floor(self, *demands: str) -> SecurityFloor:
        """Do not demand these any more. Raises `PermissionDenied`."""
        return self._alter(remove=demands)

    def _alter(self, add: Iterable[str] = (), remove: Iterable[str] = (), *, force: bool = False) -> SecurityFloor:
        request = pb.AlterSecurityFloorRequest(add=add, remove=remove, force=force)
        deadline = Deadline(self._timeout_ms)
        return _floor(self._connection.ask_any("AlterSecurityFloor", request, pb.SecurityFloorResponse, deadline))


def _floor(answer: pb.SecurityFloorResponse) -> SecurityFloor:
    offers = {broker.id: tuple(broker.offers) for broker in answer.brokers}
    return described(SecurityFloor, answer, offers=offers)
