"""Moving replicas from broker to broker while the partitions are written to, and handing leadership over.

A move is written in the topic's document and from then on carries itself: the partition's brokers are those of its
origin and of its target together, so the new ones are sent what there is and join the in-sync set. Whoever leads the
partition looks whether they have; if it is not the one that is to lead, it hands over first; then it writes that the
target is all. Any of them may die in between: the next leader goes on. Nobody else directs it, and two who do the same
at once are harmless, since what they write is compare-and-set.

Where replicas should go is rebalancing.py's.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mq_broker.broker.administration.rebalancing import Members, Place, balanced, drained, resized
from mq_broker.broker.administration.topic_changes import arrived, begun, called_off, is_complete
from mq_broker.broker.administration.topics import TRANSACTIONS_REPLICAS, Admin
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.metadata.topics import Topic, Topics
from mq_broker.coordination.interface import Move, TopicSpec
from mq_broker.core.messages import NodeState
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, NotEnoughReplicas, TritonMQError
from mq_protocol.limits import REPLICAS_MAX
from mq_protocol.names import TRANSACTIONS_TOPIC, quoted

log = logging.getLogger(__name__)

LOOK_S: Final = 0.1
"""How often a leader looks whether those that come have arrived, while anything moves. A change of topics may come
sooner."""

TRANSFER_MS: Final = 3_000
"""How long writes may be refused while leadership is handed over; it takes a few milliseconds where the heir keeps
up."""

TRANSFER_PAUSE_S: Final = 5.0
TRANSFERS_MAX: Final = 3
"""A leader of the target that could not hand over to the first of it so often stays the leader."""


@dataclass(slots=True)
class _Attempts:
    """To hand a partition's leadership over: how many there were and when, in the loop's time, the next may be made."""

    move: Move
    made: int = 0
    next_at: float = 0.0


class Moves:
    """Carries on the moves of partitions led here, and answers what is asked about moves. Owns how often leaderships
    were handed over. `hint` is set when the topics have changed."""

    def __init__(self, shell: Shell, cluster: Cluster, topics: Topics, admin: Admin) -> None:
        self._shell = shell
        self._cluster = cluster
        self._topics = topics
        self._admin = admin
        self.hint = asyncio.Event()
        self._attempts: dict[tuple[str, int], _Attempts] = {}

    # ------------------------------------------------------------------ carrying on

    async def look(self) -> float:
        """At all that moves; the next time once anything does."""
        moving = [topic for topic in self._topics.all() if topic.spec.moving]
        if not moving:
            self._attempts.clear()
            return math.inf
        for topic in moving:
            await self._carry_on(topic)
        return LOOK_S

    async def _carry_on(self, topic: Topic) -> None:
        done: dict[int, Move] = {}
        for number, move in topic.spec.moving.items():
            partition = self._shell.hosted(topic, number)
            if partition is not None and partition.serving and self._may_end(partition, move):
                done[number] = move
        if not done:
            return
        try:
            await self._topics.edit(
                topic.spec.name, lambda spec: arrived(spec, done) if spec.topic_id == topic.spec.topic_id else spec
            )
        except TritonMQError as error:
            log.warning("that %s moved cannot be written yet: %s", topic.spec.name, error)
            return
        for number, move in done.items():
            log.info("%s-%d moved from brokers %s to %s", topic.spec.name, number, list(move.origin), list(move.target))

    def _may_end(self, partition: Partition, move: Move) -> bool:
        """Whether nothing of the move is left but to write that it is over. Hands leadership over if that is what is
        left."""
        isr, here = partition.replica.isr, self._shell.broker
        complete = is_complete(move, isr)
        heirs = [
            broker for broker in move.target if broker in isr and broker in self._cluster.brokers and broker != here
        ]
        first = move.target[0]
        if here not in move.target:
            if first in heirs:
                self._hand_over(partition, move, first)
            elif complete and heirs:
                self._hand_over(partition, move, heirs[0])
            return False
        return complete and (first not in heirs or not self._hand_over(partition, move, first, TRANSFERS_MAX))

    def _hand_over(self, partition: Partition, move: Move, to: int, attempts_max: int | None = None) -> bool:
        """Begin to, unless that was just done. False if it was tried often enough."""
        now = asyncio.get_running_loop().time()
        key = partition.topic.spec.topic_id, partition.number
        attempts = self._attempts.get(key)
        if attempts is None or attempts.move != move:
            attempts = self._attempts[key] = _Attempts(move)
        if now < attempts.next_at:
            return True
        if attempts_max is not None and attempts.made >= attempts_max:
            return False
        attempts.made += 1
        attempts.next_at = now + TRANSFER_PAUSE_S
        log.info("%s: on its way to brokers %s, which broker %d is to lead", partition.name, list(move.target), to)
        partition.transfer(to, self._shell.now_ms() + TRANSFER_MS)
        return True

    # ------------------------------------------------------------------ asked for

    async def start_moves(self, request: pb.StartMovesRequest, deadline: float) -> pb.StartMovesResponse:
        """Answers once all are written. Asked again it does no more."""
        by_topic: dict[str, dict[int, Members]] = {}
        for move in request.moves:
            if len(move.target) > REPLICAS_MAX:  # each takes a byte of the request
                raise InvalidRequest(
                    f"{quoted(move.topic)}-{move.partition} cannot be on {len(move.target)} brokers: name at most "
                    f"{REPLICAS_MAX}"
                )
            by_topic.setdefault(move.topic, {})[move.partition] = tuple(move.target)
        for name, wanted in by_topic.items():
            await self._topics.get(name)
            await self._topics.edit(name, self._change(wanted, cancel=request.cancel))
            what = {n: "back" if request.cancel else f"to {list(target)}" for n, target in wanted.items()}
            log.info("topic %s: %d partitions move: %s", name, len(what), quoted(str(what)))
        self.hint.set()
        return pb.StartMovesResponse()

    def _change(self, wanted: Mapping[int, Members], *, cancel: bool) -> Callable[[TopicSpec], TopicSpec]:
        if cancel:
            return lambda spec: called_off(spec, wanted)
        return lambda spec: begun(spec, wanted, self._cluster.brokers)

    async def moves(self, request: pb.MovesRequest, deadline: float) -> pb.MovesResponse:
        """All that are on their way now; and how many partitions need broker `request.broker` still."""
        await self._topics.refresh()
        moving = [(topic, n, move) for topic in self._topics.all() for n, move in topic.spec.moving.items()]
        states = await self._states((topic, n) for topic, n, _ in moving)
        response = pb.MovesResponse()
        for (topic, number, move), state in zip(moving, states, strict=True):
            response.moves.add(
                topic=topic.spec.name,
                partition=number,
                origin=move.origin,
                target=move.target,
                isr=[member for member, _ in state.isr] if state is not None else (),
                leader=state.leader.broker if state is not None and state.leader is not None else 0,
            )
        if request.broker:
            response.held = await self._held(request.broker)
        return response

    async def _held(self, broker: int) -> int:
        """Partitions that are on that broker; once there is none, those whose in-sync set names it still."""
        topics = self._topics.all()
        assigned = sum(broker in members for topic in topics for members in topic.spec.assignment)
        if assigned:
            return assigned
        # The nodes themselves: what a follower knows of the in-sync set may be half a minute old.
        states = await self._states((topic, number) for topic in topics for number in range(topic.partitions))
        return sum(state is None or any(broker == member for member, _ in state.isr) for state in states)

    async def _states(self, partitions: Iterable[tuple[Topic, int]]) -> list[NodeState | None]:
        """Many nodes, asked for together: one after another, those of ten thousand partitions would outlast the
        request."""
        return await asyncio.gather(*(self._admin.state(topic, number) for topic, number in partitions))

    async def plan_moves(self, request: pb.PlanMovesRequest, deadline: float) -> pb.PlanMovesResponse:
        """What would empty a broker, or spread everything evenly, and who leads each partition now. Changes nothing."""
        await self._topics.refresh()
        topics = {topic.spec.name: topic for topic in self._topics.all()}
        layout = {(name, n): members for name, topic in topics.items() for n, members in enumerate(topic.spec.target)}
        racks = self._cluster.racks
        if request.drain:
            changed = await asyncio.to_thread(drained, request.drain, racks, layout)
        else:
            wider = self._wider_transactions(layout)
            changed = wider | await asyncio.to_thread(balanced, racks, layout | wider)
            changed |= await self._led_by_others(layout, changed)
        places = sorted(changed)
        states = await self._states((topics[name], number) for name, number in places)
        response = pb.PlanMovesResponse()
        for place, state in zip(places, states, strict=True):
            leader = state.leader.broker if state is not None and state.leader is not None else 0
            response.moves.add(
                topic=place[0], partition=place[1], origin=layout[place], target=changed[place], leader=leader
            )
        return response

    def _wider_transactions(self, layout: Mapping[Place, Members]) -> dict[Place, Members]:
        """The coordinators' topic was made with as many replicas as there were brokers: when there are more, it is to
        have more."""
        topic = self._topics.find(TRANSACTIONS_TOPIC)
        replicas = min(TRANSACTIONS_REPLICAS, len(self._cluster.racks))
        if topic is None or min(map(len, topic.spec.target)) >= replicas:
            return {}
        return resized(replicas, self._cluster.racks, layout, TRANSACTIONS_TOPIC)

    async def _led_by_others(self, layout: Mapping[Place, Members], changed: Collection[Place]) -> dict[Place, Members]:
        """Partitions that stay where they are and are led by another than their first replica, which could."""
        staying = [
            (topic, number)
            for topic in self._topics.all()
            for number in range(topic.partitions)
            if (topic.spec.name, number) in layout and (topic.spec.name, number) not in changed
        ]
        found: dict[Place, Members] = {}
        for (topic, number), state in zip(staying, await self._states(staying), strict=True):
            place = topic.spec.name, number
            first = layout[place][0]
            if state is None or state.leader is None or state.leader.broker == first:
                continue
            if any(first == member for member, _ in state.isr) and first in self._cluster.brokers:
                found[place] = layout[place]
        return found

    async def lead(self, request: pb.LeadRequest, deadline: float) -> pb.LeadResponse:
        """Hand the partition's leadership over to that broker. Answers once it leads, or raises saying why it does
        not."""
        topic, to = await self._topics.get(request.topic), request.broker
        partition = self._shell.leader(topic, request.partition)
        if to == self._shell.broker:
            return pb.LeadResponse()
        members = topic.spec.assignment[request.partition]
        if to not in members:
            raise InvalidRequest(
                f"broker {to} holds no replica of {partition.name}, brokers {list(members)} do: `tritonmq partition "
                "move` it first"
            )
        if to not in self._cluster.brokers or to not in partition.replica.isr:
            raise NotEnoughReplicas(
                f"broker {to} is not in sync with {partition.name} (brokers {list(partition.replica.isr)} are)"
            )
        loop, epoch = asyncio.get_running_loop(), partition.replica.leader_epoch
        until = min(deadline, loop.time() + TRANSFER_MS / 1000)
        partition.transfer(to, self._shell.now_ms() + int((until - loop.time()) * 1000))
        while loop.time() < until + LOOK_S and not partition.closed:
            await asyncio.sleep(LOOK_S / 5)
            if partition.replica.leader == to and partition.replica.leader_epoch > epoch:
                return pb.LeadResponse()
        raise NotEnoughReplicas(
            f"broker {to} does not lead {partition.name} within {TRANSFER_MS} ms: it may lag, ask again"
        )
