"""Consumers whose brokers the test plays at random: whatever breaks, moves or is slow, each record is taken once and in
order, and in the end all credit is back."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mq_client.errors import NotLeader, Unreachable
from mq_client.producing.batches import records_to_batch
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.wire.error_messages import to_wire
from tests.mq_client.cluster.scripted import topic_info
from tests.mq_client.consuming.played_feeds import World
from tests.mq_client.consuming.played_subscription import Client, Stream

STEPS = 200
PARTITIONS = (0, 1)


class Served:
    """A broker's end of one stream: its credit, and what it pushes next of each partition that is opened."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.credit = 0
        self.next: dict[int, int] = {}
        self.given_back: set[int] = set()
        self.dead = False

    def over(self, error: Unreachable | None) -> None:
        self.dead = True
        self.stream.over(error)


class Taking:
    """A consumer of the walk. `due`: the offset that it must be given next of each partition."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.due = dict.fromkeys(PARTITIONS, 0)
        self.lost: set[int] = set()

    def take(self, count: int) -> None:
        waiting = self.client.subscriptions.queues["t"]
        for _ in range(min(count, waiting.qsize())):
            record = waiting.get_nowait()
            assert (record.offset, record.value) == (self.due[record.partition], b"%d" % record.offset)
            self.due[record.partition] += 1


class Walk:
    """Owns two brokers, what they say on every stream, and the consumers."""

    def __init__(self, world: World, seed: int, count: int, group: str = "") -> None:
        self.random = random.Random(seed)
        self.world = world
        self.group = group
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.leaders = [1, 2]
        self.epoch = 1
        self.cursors: dict[int, int] = {}
        self.away: set[int] = set()
        self.served: dict[int, Served] = {}
        self.takers = [self._taker() for _ in range(count)]
        for taker in self.takers:  # the clock of the newest is the one that all of them look at
            taker.client.connection.clock = self.takers[-1].client.connection.clock

    def _taker(self) -> Taking:
        client = self.world.client(self.group, credit_bytes=self.random.choice((1_500, 4_000, 1 << 20)))
        client.subscriptions.start = lambda request: setattr(request, "earliest", True)
        client.subscriptions.remove("t")
        client.subscribe("t")
        return Taking(client)

    # ------------------------------------------------------------------ brokers

    def streams(self) -> list[Served]:
        for stream in (*self.world.own, *self.world.shared):
            self.served.setdefault(id(stream), Served(stream))
        return [each for each in self.served.values() if not each.dead]

    def tell(self, stream: Stream, header: pb.BatchesHeader, *payloads: memoryview) -> None:
        self.takers[0].client.hear(stream, header, *payloads)

    def opened(self, served: Served, partition: int, offset: int, error: NotLeader | None = None) -> None:
        active = error is None and partition not in self.away
        told = pb.PartitionOpened(topic="t", partition=partition, offset=offset, active=active)
        if error is not None:
            told.error.CopyFrom(to_wire(error))
        for taker in self.takers if self.group else ():
            if active and partition in taker.lost:
                taker.lost.discard(partition)
                taker.due[partition] = offset
            elif error is None and not active and served.stream is self._current(taker, partition):
                taker.lost.add(partition)
        self.tell(served.stream, pb.BatchesHeader(opened=[told]))

    def _current(self, taker: Taking, partition: int) -> Any:
        address = taker.client.place(partition).address
        own = [each for each in self.world.own if each.address == address]
        return own[-1] if own else None

    def hear(self, served: Served) -> None:
        """One word of the client's."""
        if not served.stream.said:
            if served.stream.last_said:
                served.over(None)
            return
        request = served.stream.said.pop(0)
        served.credit += request.credit.bytes
        for place in request.close.partitions:
            served.next.pop(place.partition, None)
        for place in request.settled:
            if place.partition in served.next and place.partition not in served.given_back:
                assert place.offset <= served.next[place.partition], "a broker does not believe what it has not pushed"
                assert place.offset <= self.takers[0].due[place.partition], "nobody has been given that yet"
                self.cursors[place.partition] = max(self.cursors[place.partition], place.offset)
            elif place.offset <= served.next.get(place.partition, -1):  # perhaps a word of before it was given back
                self.cursors[place.partition] = max(self.cursors[place.partition], place.offset)
        for wanted in request.open.partitions:
            self._open(served, wanted)

    def _open(self, served: Served, wanted: pb.SubscribePartition) -> None:
        leader = self.leaders[wanted.partition]
        if served.stream.address != f"b:{leader}":
            hint = leader if self.random.random() < 0.5 else 0
            self.opened(served, wanted.partition, 0, NotLeader("not here", hint, self.epoch if hint else 0))
            return
        offset = wanted.offset
        if self.group:
            offset = self.cursors.setdefault(wanted.partition, offset)
        if wanted.partition not in self.away:
            served.next[wanted.partition] = offset
        self.opened(served, wanted.partition, offset)

    def push(self, served: Served) -> None:
        ready = [number for number, at in served.next.items() if at < self.ends[number]]
        if not ready or served.credit <= 0:
            return
        partition = self.random.choice(ready)
        base = served.next[partition]
        count = self.random.randint(1, min(4, self.ends[partition] - base))
        values = [b"%d" % offset for offset in range(base, base + count)]
        payload = memoryview(encode_batch(records_to_batch([], values, [], [0] * count)))
        stored = pb.StoredBatch(
            topic="t", partition=partition, base_offset=base, record_count=count, payload_bytes=len(payload)
        )
        served.credit -= len(payload)
        served.next[partition] += count
        self.tell(served.stream, pb.BatchesHeader(batches=[stored]), payload)

    def move(self) -> None:
        """A partition has another leader. The former one says so, or has stopped and says nothing."""
        partition = self.random.choice(PARTITIONS)
        self.leaders[partition] = 3 - self.leaders[partition]
        self.epoch += 1
        if self.cursors.get(partition) == 0:  # it died before the group's first place was written down
            del self.cursors[partition]
            self.away.discard(partition)
        self.know()
        for served in self.streams():
            if served.next.pop(partition, None) is not None and self.random.random() < 0.5:
                self.opened(served, partition, 0, NotLeader("no longer", self.leaders[partition], self.epoch))

    def know(self) -> None:
        for taker in self.takers:
            taker.client.say(topic_info(*self.leaders, epoch=self.epoch))

    def hand_over(self) -> None:
        """To another member of the group, which works on some; or back."""
        partition = self.random.choice(PARTITIONS)
        holders = [each for each in self.streams() if partition in each.next]
        if partition in self.away:
            self.away.discard(partition)
            self.cursors[partition] = self.random.randint(self.cursors[partition], self.ends[partition])
            self.give_back(partition)
        elif holders:
            self.away.add(partition)
            for served in holders:
                del served.next[partition]
                self.opened(served, partition, 0)

    def give_back(self, partition: int) -> None:
        for served in self.streams():
            if served.stream is self._current(self.takers[0], partition):
                served.given_back.add(partition)
                served.next[partition] = self.cursors[partition]
                self.opened(served, partition, self.cursors[partition])

    # ------------------------------------------------------------------ the walk

    def step(self) -> None:
        taker, streams = self.random.choice(self.takers), self.streams()
        served = self.random.choice(streams) if streams else None
        match self.random.randrange(20):
            case 0 | 1 | 2:
                self.ends[self.random.choice(PARTITIONS)] += self.random.randint(1, 3)
            case 3 | 4 | 5 | 6 if served is not None:
                self.hear(served)
            case 7 | 8 | 9 | 10 if served is not None:
                self.push(served)
            case 11 if served is not None and self.random.random() < 0.5:
                served.over(self.random.choice((None, Unreachable("gone"))))
            case 12 if self.random.random() < 0.3:
                self.move()
            case 13 | 14:
                self.tend(taker)
            case 15 if self.group:
                self.hand_over()
            case 15 if self.random.random() < 0.2 and self.is_answered(taker):
                taker.client.subscriptions.remove("t")
                taker.client.subscribe("t")
                taker.due = dict.fromkeys(PARTITIONS, 0)
            case 16:
                self.world.loop.passes(self.random.choice((0.0, 0.5, 5.0)))
            case _:
                taker.take(self.random.randint(1, 4))

    @staticmethod
    def is_answered(taker: Taking) -> bool:
        """Else an answer to the former subscription would be taken for one to the next."""
        return all(taker.client.place(number).answered for number in PARTITIONS)

    def tend(self, taker: Taking) -> None:
        """As the consumer's thread does."""
        taker.client.connection.clock.now += 1
        taker.client.look()
        taker.client.subscriptions._settle()

    def rest(self) -> None:
        """Nothing breaks any more, and everything is taken."""
        for number in [*self.away]:
            self.away.discard(number)
            self.give_back(number)
        for round_ in range(20):
            for number in PARTITIONS if round_ < 10 else ():
                self.ends[number] += 1
            for taker in self.takers:
                self.tend(taker)
                taker.take(1_000)
                taker.client.subscriptions.queues["t"].done_with_last()
            for served in self.streams():
                while served.stream.said and not served.dead:
                    self.hear(served)
                for _ in range(20):
                    self.push(served)
            self.world.loop.passes(1.0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def check_credit(walk: Walk) -> None:
    for taker in walk.takers:
        subscriptions = taker.client.subscriptions
        for served in walk.streams():
            mine = served.stream in walk.world.own and served.stream.heard.__self__._subscriptions is subscriptions
            if mine and not served.stream.last_said:
                assert subscriptions.credit_bytes * 3 / 4 < served.credit <= subscriptions.credit_bytes
        assert {subscriptions.held(address) for address in ("b:1", "b:2")} == {0}


@pytest.mark.parametrize("seed", range(12))
def test_consumers_of_one_process_are_each_given_every_record_once_and_in_order(world: World, seed: int) -> None:
    walk = Walk(world, seed, count=1 + seed % 4)
    for _ in range(STEPS):
        walk.step()
    walk.rest()
    for taker in walk.takers:
        assert taker.due == walk.ends
    check_credit(walk)


@pytest.mark.parametrize("seed", range(12))
def test_a_member_of_a_group_goes_on_behind_what_was_done_and_leaves_its_place_at_the_end(
    world: World, seed: int
) -> None:
    walk = Walk(world, seed, count=1, group="g")
    for _ in range(STEPS):
        walk.step()
    walk.rest()
    [taker] = walk.takers
    assert taker.due == walk.ends
    assert walk.cursors == walk.ends, "all of it is done with, and the brokers have been told"
    check_credit(walk)
