"""The security floor of the cluster: in force here, shown, raised and lowered. What it may demand is in
`security/floor.py`.

The coordination service is the truth. This broker goes by what it read last. A broker that the coordination service
has lost reads the floor again before it is registered again (`metadata/brokers.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from mq_broker.broker.administration.features import absent_holders
from mq_broker.broker.metadata.topics import Topics
from mq_broker.coordination.editing import Changes, edit_documents
from mq_broker.coordination.interface import BrokerRegistration, SecurityDocuments
from mq_broker.coordination.service import CoordinationService
from mq_broker.rpc.callers import asker
from mq_broker.security.audit import Audit
from mq_broker.security.floor import DOCUMENT, Demand, dump, how_to_offer, in_order, load, parse_demand
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    CoordinationUnavailable,
    InvalidRequest,
    InvalidSetting,
)

log = logging.getLogger(__name__)

CLOSED: Final = "closed"


def offered_by(registration: BrokerRegistration) -> frozenset[Demand]:
    """What that broker says that it offers. One that says nothing offers nothing."""
    found = {Demand.AUTHORIZE} if registration.judges else set()
    if registration.is_tls_alone:
        found.add(Demand.TLS)
    if registration.zookeeper_auth:
        found.add(Demand.ZK_AUTH)
    return frozenset(found)


class Floor:
    """Owns what is demanded, as it was read last. `changed` is called when that is something else. `read` is to be set:
    it reads the security documents anew."""

    def __init__(self, access: Callable[[], str], changed: Callable[[], None]) -> None:
        self.read: Callable[[], Awaitable[None]]
        self.demands: frozenset[str] = frozenset()
        self._access = access
        self._changed = changed
        self._known = False
        self._told = ""

    async def refresh(self) -> None:
        """What is demanded is read anew. Raises `CoordinationUnavailable`."""
        await self.read()

    def taken(self, found: SecurityDocuments) -> None:
        """These documents were read. The floor is in force from now on. Raises `CoordinationUnavailable` if its
        document cannot be read and never could; later what was read last stays in force."""
        data = found.documents[DOCUMENT][1] if DOCUMENT in found.documents else None
        try:
            demands = frozenset() if data is None else load(data)
        except CoordinationUnavailable as error:
            if not self._known:
                raise
            self._tell(f"{error}. Until then the security floor stays as it was read last")
            return
        if data is None and self.demands:  # nobody who lowers the floor removes its document
            self._tell("the security floor was removed in ZooKeeper past `tritonmq`: what it demanded stays in force")
            return
        self._known = True
        if demands != self.demands:
            self.demands = demands
            self._changed()
        opened = Demand.ZK_AUTH in demands and self._access() != CLOSED
        self._tell(_OPENED if opened else "")

    def _tell(self, what: str) -> None:
        if what and what != self._told:
            log.error("%s", what)
        self._told = what

    def missing(self, registration: BrokerRegistration) -> list[str]:
        """What the floor demands and that broker does not offer."""
        return in_order(self.demands - offered_by(registration))

    def check_here(self, registration: BrokerRegistration) -> None:
        """Raises `InvalidSetting`, which says how to start this broker right, if it is below the floor."""
        missing = self.missing(registration)
        if missing:
            raise InvalidSetting(
                f"the cluster's security floor demands {', '.join(in_order(self.demands))}, and this broker does not "
                f"offer {', '.join(missing)}: {how_to_offer(missing)} (docs/floor.md). `tritonmq cluster security "
                "lower` lowers the floor"
            )

    def check_nodes(self) -> None:
        """Raises `InvalidSetting` if the nodes in ZooKeeper may be written by others, and may not."""
        if Demand.ZK_AUTH in self.demands and self._access() != CLOSED:
            raise InvalidSetting(_OPENED)


_OPENED: Final = (
    "the cluster's security floor demands zk_auth, and the cluster's nodes in ZooKeeper are open to others than its "
    "brokers: find out who opened them, then `tritonmq cluster secure-zookeeper` closes them (docs/zookeeper.md)"
)


class FloorSettings:
    """Owns nothing."""

    def __init__(
        self,
        coordination: CoordinationService,
        floor: Floor,
        topics: Topics,
        audit: Audit | None,
    ) -> None:
        self._coordination = coordination
        self._floor = floor
        self._topics = topics
        self._audit = audit

    async def security_floor(self, _request: pb.SecurityFloorRequest, _deadline: float) -> pb.SecurityFloorResponse:
        """What is demanded now, which is in force here as well, and what each registered broker offers."""
        await self._floor.refresh()
        demands = _kept(await self._coordination.security.read())[1]
        return await self._answer(demands, demands)

    async def alter_security_floor(
        self, request: pb.AlterSecurityFloorRequest, _deadline: float
    ) -> pb.SecurityFloorResponse:
        """All of it or nothing; in force at this broker when it is answered, at the others within 2 s. May be asked
        again. Raises `InvalidRequest` for more than every registered broker offers."""
        before = after = frozenset[str]()

        async def change(found: SecurityDocuments) -> Changes:
            nonlocal before, after
            version, before = _kept(found)
            add, remove = _changes(request, before)
            if add - before:
                await self._check_raise(add - before, force=request.force)
            after = (before - remove) | add
            return {} if after == before else {DOCUMENT: (version, dump(after))}

        await edit_documents(self._coordination.security, "the security floor", change)
        if after != before:
            self._note(before, after)
        await self._floor.refresh()
        return await self._answer(after, before)

    async def _answer(self, demands: Collection[str], before: Collection[str]) -> pb.SecurityFloorResponse:
        brokers = await self._coordination.brokers()
        answer = pb.SecurityFloorResponse(
            demands=in_order(demands),
            before=in_order(before),
            absent=absent_holders(self._topics, brokers),
            coordination_access=self._coordination.access,
        )
        for broker in sorted(brokers):
            answer.brokers.add(id=broker, offers=in_order(offered_by(brokers[broker])))
        return answer

    async def _check_raise(self, add: Collection[str], *, force: bool) -> None:
        """Raises `InvalidRequest` if a broker would be below, or may be."""
        brokers = await self._coordination.brokers()
        below = {broker: in_order(set(add) - offered_by(brokers[broker])) for broker in sorted(brokers)}
        told = [f"broker {broker} does not offer {', '.join(missing)}" for broker, missing in below.items() if missing]
        if told:
            missing = {each for each_broker in below.values() for each in each_broker}
            raise InvalidRequest(f"{'; '.join(told)}. To offer it, {how_to_offer(missing)}")
        if Demand.ZK_AUTH in add and self._coordination.access != CLOSED:
            raise InvalidRequest(
                "every broker has a credential for ZooKeeper, and the cluster's nodes there are not closed yet: "
                "`tritonmq cluster secure-zookeeper` closes them"
            )
        absent = absent_holders(self._topics, brokers)
        if absent and not force:
            raise InvalidRequest(
                f"brokers {absent} hold replicas and are not registered, so nobody knows what they offer. One that is "
                "only cut off from ZooKeeper still answers whoever reaches it: start them so that they offer it, or "
                "stop them and use --force"
            )

    def _note(self, before: Iterable[str], after: Iterable[str]) -> None:
        was, now = ", ".join(in_order(before)) or "nothing", ", ".join(in_order(after)) or "nothing"
        log.warning("the cluster's security floor demanded %s, and demands %s: changed by %s", was, now, asker().text)
        if self._audit is not None:
            self._audit.allowed(asker(), "AlterSecurityFloor", "set", f"{was} -> {now}", often=False)


def _changes(request: pb.AlterSecurityFloorRequest, before: Collection[str]) -> tuple[set[str], set[str]]:
    """What is to be demanded, and what is not any more. What only a newer release knows can be taken away."""
    add = {str(parse_demand(each)) for each in request.add}
    remove = {each if each in before else str(parse_demand(each)) for each in request.remove}
    if not add and not remove:
        raise InvalidRequest(f"nothing is named that is to be demanded, or not any more: name {', '.join(Demand)}")
    if add & remove:
        raise InvalidRequest(f"{', '.join(in_order(add & remove))} is to be demanded, and not any more: choose one")
    return add, remove


def _kept(found: SecurityDocuments) -> tuple[int, frozenset[str]]:
    if DOCUMENT not in found.documents:
        return -1, frozenset()
    version, data = found.documents[DOCUMENT]
    return version, load(data)
