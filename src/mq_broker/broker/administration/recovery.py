"""When no log that the in-sync set names is left: rule 15, beyond the budget of failures that a topic was made for.

Nothing can then be promised about what the remaining replicas have, so an operator must say that the partition shall go
on from the best of them: `tritonmq partition recover`. All replicas are asked what they have, and the state node is
changed as by any other compare-and-set: a new epoch, one more recovery, nobody leads, the chosen log alone in sync, and
a floor under new offsets, so that none that a lost record may have had is given again. Replicas see that by themselves.

For topics with `on_total_loss=recover` (durability=memory, whose logs end with their brokers) the first replica does it
by itself.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.metadata.topics import Topic, Topics
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.messages import CasOutcome, NodeState
from mq_broker.core.replication.replica import Replica
from mq_broker.rpc.calls import Calls
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, OutcomeUnknown, TritonMQError, UnknownPartition
from mq_protocol.limits import EPOCH_MAX, next_life
from mq_protocol.names import OnTotalLoss

log = logging.getLogger(__name__)

LEADERLESS_S: Final = 3.0
"""A partition that has had no leader for so long, though all its brokers live, is not merely between two leaders."""

STATUS_TIMEOUT_S: Final = 5.0
WRITE_ATTEMPTS_MAX: Final = 5

Statuses = Mapping[int, pb.ReplicaStatusResponse]
"""By broker: what those say that answered."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a recovery would do. `given_up`: brokers that were in sync and are not any more."""

    state: NodeState
    kept: pb.ReplicaStatusResponse
    given_up: tuple[int, ...]

    def made(self, state: NodeState) -> bool:
        """Whether the node, once it was asked to be that, has become so: perhaps somebody leads by now, who keeps all
        of it."""
        after = self.state
        return (state.recovery, state.offset_floor) == (after.recovery, after.offset_floor) and after.isr[
            0
        ] in state.isr


def describe(replica: Replica, status: pb.ReplicaStatusResponse) -> None:
    """Fill in what a replica that is open says of itself."""
    status.open = True
    status.log_id = replica.identity.log_id
    status.recovery = replica.identity.recovery
    status.last_epoch = replica.last_epoch
    status.last_index = replica.last_index
    status.next_offset = replica.next_offset_at_most
    status.leading = replica.leading
    status.seen_epoch = replica.leader_epoch


def choose(
    name: str, state: NodeState, statuses: Statuses, token: str, *, from_broker: int = 0, force: bool = False
) -> Choice:
    """The log to go on from: the one of `from_broker`, else that with the highest (epoch, length). Raises
    `InvalidRequest` where nothing needs recovering, or more than is known might be lost and `force` is not given."""
    if state.leader is not None and (leader := statuses.get(state.leader.broker)) is not None and leader.leading:
        raise InvalidRequest(f"{name} is led by broker {state.leader.broker}: there is nothing to recover")
    whole = [
        broker
        for broker, log_id in state.isr
        if (status := statuses.get(broker)) is not None and status.open and log_id in ("", status.log_id)
    ]
    if not force:
        _refuse_needless_loss(name, state, statuses, whole)
    # A replica never gives up an epoch that it has seen: the new one is above all of them, though the node's own be
    # lower.
    beyond = sorted(broker for broker, status in statuses.items() if status.seen_epoch >= EPOCH_MAX)
    known = {b: status for b, status in statuses.items() if status.open and status.log_id and b not in beyond}
    unheard = passed_over(state, statuses)
    candidates = {b: status for b, status in known.items() if b not in unheard}
    if unheard and (from_broker in unheard or not force or not candidates):
        raise InvalidRequest(
            f"{name}: broker {unheard[0]} has not heard of the recovery before this one, and puts its log aside once "
            "it does: ask again in a moment; --force continues with another log"
        )
    if beyond and not candidates:
        raise InvalidRequest(
            f"{name}: the logs of brokers {beyond} name epoch {EPOCH_MAX} or more, after which there is none: stop "
            "those brokers, and move the partition's directory aside on one of them"
        )
    if from_broker and from_broker not in candidates:
        raise InvalidRequest(
            f"{name}: broker {from_broker} has no open replica; those that have: {sorted(candidates) or 'none'}"
        )
    if not candidates:
        raise InvalidRequest(f"{name}: no replica of it is open on any broker: start one that had it")
    best = max(sorted(candidates), key=lambda b: (candidates[b].last_epoch, candidates[b].last_index))
    kept = candidates[from_broker or best]
    floor = max(state.offset_floor, *(status.next_offset for status in known.values()))
    if not whole:
        floor = next_life(floor)  # what is here may be shorter than what was there: how far that went, nobody knows
    epoch = max(state.leader_epoch, *(status.seen_epoch for status in known.values())) + 1
    after = replace(
        state,
        leader=None,
        leader_epoch=epoch,
        isr=((kept.broker, kept.log_id),),
        recovery=max(state.recovery, *(status.recovery for status in known.values())) + 1,
        token=token,
        offset_floor=floor,
    )
    given_up = tuple(broker for broker, _ in state.isr if broker != kept.broker)
    return Choice(after, kept, given_up)


def passed_over(state: NodeState, statuses: Statuses) -> list[int]:
    """Brokers whose logs the recovery before this one was not from, and that have not heard of it yet. To name such a
    log now would be of no use: it is put aside by whoever reads of that recovery first. Not so one that has read that
    nobody leads: it waits, and may go on."""
    return sorted(
        broker
        for broker, status in statuses.items()
        if status.open
        and not (state.leader is None and status.seen_epoch >= state.leader_epoch)
        and status.last_index
        and status.recovery < state.recovery
        and (broker, status.log_id) not in state.isr
        and any(named != broker for named, _ in state.isr)
    )


def _refuse_needless_loss(name: str, state: NodeState, statuses: Statuses, whole: Sequence[int]) -> None:
    """Raise `InvalidRequest` while a log may come that has more than those that are known. `whole`: brokers whose logs
    are in sync."""
    if whole:
        raise InvalidRequest(
            f"{name}: broker {whole[0]} has a log that is in sync and leads with it by itself in a moment: see "
            "`tritonmq partition describe`; --force continues with another log, and loses what only this one has"
        )
    unknown = [broker for broker, _ in state.isr if (status := statuses.get(broker)) is None or not status.open]
    if unknown:
        raise InvalidRequest(
            f"{name}: broker {unknown[0]} was in sync and does not answer for its replica: its log may be whole, so "
            "start it and wait; --force gives up what only it has"
        )
    silent = sorted(broker for broker, status in statuses.items() if not status.open)
    if silent:
        raise InvalidRequest(
            f"{name}: broker {silent[0]} does not answer for its replica, or has not opened it yet, and it may have "
            "more than the others: start that broker, or ask again in a moment; --force continues without it"
        )


class TotalLoss:
    """Owns the watch over this broker's partitions that have lost every log in sync."""

    def __init__(
        self, shell: Shell, cluster: Cluster, topics: Topics, coordination: CoordinationService, calls: Calls
    ) -> None:
        self._shell = shell
        self._cluster = cluster
        self._topics = topics
        self._coordination = coordination
        self._calls = calls
        self._leaderless: dict[tuple[str, int], float] = {}

    # ------------------------------------------------------------------ asked for

    async def replica_status(self, request: pb.ReplicaStatusRequest, deadline: float) -> pb.ReplicaStatusResponse:
        """What this broker's replica has. It looks at its state node, too."""
        status = pb.ReplicaStatusResponse(broker=self._shell.broker)
        place = request.topic_id, request.partition
        partition = next((p for p in self._shell.partitions() if (p.topic.spec.topic_id, p.number) == place), None)
        if partition is not None:
            describe(partition.replica, status)
            partition.look()
        return status

    async def recover(self, request: pb.RecoverRequest, deadline: float) -> pb.RecoverResponse:
        """Raises `InvalidRequest` saying what speaks against it."""
        topic = await self._topics.get(request.topic)
        if not 0 <= request.partition < topic.partitions:
            raise UnknownPartition(
                f"topic {request.topic} has partitions 0 to {topic.partitions - 1}, not {request.partition}"
            )
        choice = await self._recover(topic, request.partition, deadline, request.from_broker, force=request.force)
        return pb.RecoverResponse(kept=choice.kept, offset_floor=choice.state.offset_floor, given_up=choice.given_up)

    async def _recover(
        self, topic: Topic, number: int, deadline: float, from_broker: int = 0, *, force: bool = False
    ) -> Choice:
        name, topic_id = f"{topic.spec.name}-{number}", topic.spec.topic_id
        token = f"recover.{uuid.uuid4().hex}"
        asked: list[Choice] = []  # each may be in the node now: answers are lost
        for _ in range(WRITE_ATTEMPTS_MAX):
            found = await self._coordination.read_state(topic_id, number)
            if found is None:
                raise UnknownPartition(f"{name} has no state node: was the topic deleted meanwhile?")
            version, state = found
            for choice in asked:
                if choice.made(state):
                    return choice
            brokers = {*topic.spec.assignment[number], *(broker for broker, _ in state.isr)}
            statuses = await self._ask_all(topic_id, number, brokers, deadline)
            choice = choose(name, state, statuses, token, from_broker=from_broker, force=force)
            asked.append(choice)
            outcome, _ = await self._coordination.write_state(topic_id, number, version, choice.state)
            if outcome is CasOutcome.DONE:
                kept = choice.kept
                log.warning(
                    "%s: recovered from the log of broker %d (epoch %d, entry %d); offsets %d to %d are lost; given "
                    "up: brokers %s",
                    name,
                    kept.broker,
                    kept.last_epoch,
                    kept.last_index,
                    kept.next_offset,
                    choice.state.offset_floor,
                    list(choice.given_up),
                )
                look = self._ask_all(topic_id, number, brokers, asyncio.get_running_loop().time() + STATUS_TIMEOUT_S)
                self._shell.spawn(_without_result(look), f"have the replicas of {name} look at its node")
                return choice
        raise OutcomeUnknown(
            f"{name}: its state keeps changing, or the answers were lost: see `tritonmq partition describe`"
        )

    async def _ask_all(
        self, topic_id: str, number: int, brokers: set[int], deadline: float
    ) -> dict[int, pb.ReplicaStatusResponse]:
        """What each of them says. Of one that does not answer: that its replica is not open."""
        request = pb.ReplicaStatusRequest(topic_id=topic_id, partition=number)
        limit = min(deadline, asyncio.get_running_loop().time() + STATUS_TIMEOUT_S)

        async def ask(broker: int) -> pb.ReplicaStatusResponse:
            if broker == self._shell.broker:
                return await self.replica_status(request, limit)
            address = self._cluster.peer_address(broker)
            if address is None:
                return pb.ReplicaStatusResponse(broker=broker)
            try:
                return await self._calls.ask(address, "ReplicaStatus", request, pb.ReplicaStatusResponse, limit)
            except TritonMQError as error:
                log.info(
                    "broker %d does not say what it has of partition %d of %s: %s", broker, number, topic_id, error
                )
                return pb.ReplicaStatusResponse(broker=broker)

        answers = await asyncio.gather(*(ask(broker) for broker in sorted(brokers)))
        return dict(zip(sorted(brokers), answers, strict=True))

    # ------------------------------------------------------------------ by itself

    async def look(self) -> None:
        """Recover what has had no leader for too long."""
        loop = asyncio.get_running_loop()
        seen: dict[tuple[str, int], float] = {}
        for topic, number in self._may_recover():
            key = topic.spec.topic_id, number
            since = seen[key] = self._leaderless.get(key, loop.time())
            if loop.time() - since >= LEADERLESS_S and self._is_mine(topic, number):
                seen[key] = loop.time()
                await self._recover_unasked(topic, number)
        self._leaderless = seen

    def _may_recover(self) -> list[tuple[Topic, int]]:
        """The partitions here that have no leader and may go on by themselves."""
        return [
            (topic, number)
            for topic in self._topics.all()
            if topic.settings.on_total_loss is OnTotalLoss.RECOVER
            for number in range(topic.partitions)
            if (partition := self._shell.hosted(topic, number)) is not None and not partition.replica.leader
        ]

    def _is_mine(self, topic: Topic, number: int) -> bool:
        """All its brokers live, and this one is the first of them: one is enough to do it."""
        members = topic.spec.assignment[number]
        return members[0] == self._shell.broker and all(broker in self._cluster.brokers for broker in members)

    async def _recover_unasked(self, topic: Topic, number: int) -> None:
        try:
            await self._recover(topic, number, asyncio.get_running_loop().time() + STATUS_TIMEOUT_S)
        except TritonMQError as error:
            log.info("%s-%d stays without a leader: %s", topic.spec.name, number, error)


async def _without_result(asking: Awaitable[object]) -> None:
    await asking
