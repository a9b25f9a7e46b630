"""Links between brokers: one bidirectional stream a pair, carrying entries and acknowledgements both ways, for all
partitions.

The broker with the lower id dials the other one (framed.py). What is ready together shares one message:
while one is being written, the next gathers. What does not fit the bounded buffer of a peer, and what was on its way
when a connection ended, is dropped: the core sends again what is not acknowledged. Nothing here knows what an entry
means.

A link belongs to the broker that proved itself when it was opened (peer_proof.py). A message in any other name ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeAlias

from mq_broker.measured import LINK_BYTES
from mq_broker.rpc.callers import check_is_broker
from mq_broker.rpc.peer_proof import NONCE_BYTES, PeerProof, Refusals, require
from mq_broker.rpc.wire.framed import FramedWire, LinkMessage, Tls, connect
from mq_broker.rpc.wire.outgoing import FIXED_BYTES, Outgoing, Peer, told_bytes
from mq_broker.rpc.wire.outgoing import PeerAddress as PeerAddress
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import IncompatibleVersion, PeerRefused, TritonMQError
from mq_protocol.limits import CONNECT_TIMEOUT_MS
from mq_protocol.versions import Versions, check_overlap
from mq_protocol.wire.envelope import Buffer, Envelope, split

log = logging.getLogger(__name__)

BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
BEAT_S: Final = 1.0
"""Between two beats of a link (`LinkBeat`)."""

REGISTRATION_TIMEOUT_S: Final = 2.0
"""A broker that was just started may dial before its registration has been read here."""

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


class Hearer(Protocol):
    """One partition's ear, called on the event loop. What it hears speaks for the broker of that link and for no other.
    A `PeerRefused` that it raises ends the link."""

    def hear_entries(self, message: pb.AppendEntries, frames: Sequence[memoryview]) -> None: ...
    def hear_ack(self, message: pb.AppendAck) -> None: ...
    def hear_so_far(self, message: pb.SoFar) -> None: ...
    def hear_snapshot(self, message: pb.SnapshotPart) -> None: ...


class LinkListener(Protocol):
    """Told, on the event loop, which links there are: `link_up` and `link_down` alternate for each broker."""

    def link_up(self, broker: int) -> None: ...
    def link_down(self, broker: int) -> None: ...

    def link_beat(self, broker: int, *, dropped: bool) -> None:
        """The broker at the other end has beaten. `dropped`: something that it sent was lost since it did so last."""

    def link_dropped(self, broker: int) -> None:
        """Something that was sent to that broker was dropped, and there is room again."""

    def hearer(self, topic_id: str, partition: int) -> Hearer:
        """Who hears messages for that partition, also if it is not open here."""


class Links:
    """Owns the connections to every other broker. `proof` says who this is, and proves it; `spawn` makes a task whose
    failure is not missed; `read_brokers` has the registrations read again, soon. `tls`: what other brokers are dialled
    with, but for those in plain text.
    """

    def __init__(
        self,
        proof: PeerProof,
        listener: LinkListener,
        spawn: Spawn,
        read_brokers: Callable[[], None] = lambda: None,
        refusals: Refusals | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._me = proof.broker
        self._proof = proof
        self._listener = listener
        self._spawn = spawn
        self._read_brokers = read_brokers
        self._refusals = refusals or Refusals()
        self._tls = tls
        self._peers: dict[int, Peer] = {}
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self._in_turn = False
        self._due: dict[int, Peer] = {}  # was sent something in this turn
        self._closed = False

    # -- what the shell says

    def know(self, brokers: dict[int, PeerAddress]) -> None:
        """The brokers registered now. A link to one that is gone is left alone while it works, and not made anew."""
        for broker, address in brokers.items():
            if broker != self._me:
                peer = self._peer(broker)
                if not address.address and peer.address != address:
                    log.warning(
                        "broker %d has no port that this broker can dial, since only one of the two speaks TLS: "
                        "nothing is replicated between them until both do",
                        broker,
                    )
                peer.address = address
                peer.news.set()
                if not address.address:
                    peer.registered.clear()
                    continue
                peer.registered.set()
                if self._me < broker and broker not in self._dialling and not self._closed:
                    self._dialling[broker] = self._spawn(self._dial_for_ever(peer), f"link to broker {broker}")
        for broker, peer in self._peers.items():
            if broker not in brokers:
                peer.registered.clear()

    def is_former(self, broker: int, incarnation: int) -> bool:
        """Whether a later life of that broker is known."""
        peer = self._peers.get(broker)
        if peer is None:
            return False
        registered = peer.address.incarnation if peer.address is not None else 0
        return incarnation < max(registered, peer.incarnation)

    def send_entries(self, to: int, message: pb.AppendEntries, parts: Sequence[Buffer]) -> None:
        """Dropped when there is no link or its buffer is full."""
        size = FIXED_BYTES + sum(message.frame_bytes)
        self._put(to, Outgoing(message, None, parts, size))

    def send_ack(self, to: int, message: pb.AppendAck) -> None:
        """As `send_entries`."""
        self._put(to, Outgoing(None, message, (), FIXED_BYTES))

    def send_so_far(self, to: int, message: pb.SoFar) -> None:
        """As `send_entries`."""
        self._put(to, Outgoing(None, None, (), FIXED_BYTES, message))

    def send_snapshot(self, to: int, head: pb.SnapshotPart, data: bytes) -> None:
        """In parts that are like `head`. Dropped when there is no link, or while an earlier one of that partition is on
        its way."""
        self._peer(to).put_snapshot(head, data)

    def turn_begins(self) -> None:
        """What is sent from now on gathers until `turn_ends`."""
        self._in_turn = True

    def turn_ends(self) -> None:
        """It goes now to those that can take it at once. A task of each link brings it to the others."""
        self._in_turn = False
        due, self._due = self._due, {}
        for peer in due.values():
            wire = peer.wire
            while wire is not None and peer.has_something and wire.has_room:
                wire.write(self._next_message(peer))
            if peer.has_something:
                peer.something.set()
            else:
                peer.written.set()

    def connected(self) -> list[int]:
        return sorted(broker for broker, peer in self._peers.items() if peer.ended is not None)

    def end(self, broker: int) -> None:
        """End the link to that broker, if there is one; the one that dials makes it again."""
        self._end(self._peer(broker))

    def refuse(self, broker: int, error: PeerRefused) -> None:
        """What that broker sent earlier turns out to be no message of a broker: end the link, and say so."""
        self._refusals.note(error, broker)
        self._end(self._peer(broker))

    def waiting_bytes(self, broker: int) -> int:
        """What waits to go to that broker."""
        return self._peer(broker).waiting_bytes

    async def flush(self, seconds: float) -> None:
        """Wait until what was said has been written to the peers that listen, or so long."""
        try:
            async with asyncio.timeout(seconds):
                for peer in self._peers.values():
                    await peer.written.wait()
        except TimeoutError:
            log.info("what was said last may not have reached every broker")

    async def close(self) -> None:
        """End every link."""
        self._closed = True
        for peer in self._peers.values():
            if peer.ended is not None:
                peer.ended.set()
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def accept(self, wire: FramedWire, greeted: Callable[[], None] = lambda: None) -> None:
        """Hold the link that another broker has dialled, until it ends. `greeted` is called once it is proved who that
        is. Raises what the far side is to be told."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                peer, incarnation = await self._greet(wire)
        except TimeoutError as error:
            raise PeerRefused("a link begins with hello, and none came: dial again", pb.PEER_NO_HELLO) from error
        except PeerRefused as error:
            self._refusals.note(error)
            raise
        greeted()
        await self._converse(peer, incarnation, wire)

    # -- conversations

    def _peer(self, broker: int) -> Peer:
        peer = self._peers.get(broker)
        if peer is None:
            peer = self._peers[broker] = Peer(broker)
        return peer

    def _put(self, to: int, outgoing: Outgoing) -> None:
        peer = self._peer(to)
        if peer.put(outgoing):
            if self._in_turn:
                self._due[to] = peer
            else:
                peer.something.set()

    async def _greet(self, wire: FramedWire) -> tuple[Peer, int]:
        """Who dialled, once that is proved. Nothing about that broker is believed, or remembered, before."""
        theirs = await wire.hello()
        if theirs.broker == self._me:
            raise PeerRefused(
                f"another process calls itself broker {self._me}: give every broker its own --id", pb.PEER_SAME_ID
            )
        if theirs.to != self._me:
            raise PeerRefused(
                f"this is broker {self._me}, not {theirs.to}: its --listen, --advertise or --peer-advertise is wrong",
                pb.PEER_WRONG_BROKER,
            )
        if not 0 < theirs.broker < self._me:
            raise PeerRefused(
                f"broker {theirs.broker} must not dial broker {self._me}: the lower id dials", pb.PEER_WRONG_WAY
            )
        check_is_broker(theirs.broker, wire.speaker())
        _check_nonce(theirs)
        mine = self._proof.hello(theirs.broker)
        mine.proof = self._proof.of_acceptor(theirs, mine)
        await wire.send(Envelope(pb.LinkHeader(hello=mine)))
        require((await wire.hello()).proof, self._proof.of_dialler(theirs, mine))
        _check_versions(mine, theirs)
        peer = self._peer(theirs.broker)
        await self._known(peer, theirs.incarnation)
        await wire.send(Envelope(pb.LinkHeader(hello=pb.LinkHello())))
        return peer, theirs.incarnation

    async def _known(self, peer: Peer, incarnation: int) -> None:
        """Returns once that life of the broker is the newest one known, and registered. Raises `PeerRefused` if it is
        not."""
        if self.is_former(peer.broker, incarnation):
            raise PeerRefused(
                f"broker {peer.broker} has been started again since this one: restart it", pb.PEER_FORMER_LIFE
            )
        try:
            async with asyncio.timeout(REGISTRATION_TIMEOUT_S):
                while peer.address is None or peer.address.incarnation < incarnation:
                    peer.news.clear()
                    self._read_brokers()
                    await peer.news.wait()
        except TimeoutError as error:
            raise PeerRefused(
                f"broker {peer.broker} is not registered with start {incarnation}, as last read here: try again",
                pb.PEER_NOT_REGISTERED,
            ) from error
        if self.is_former(peer.broker, incarnation):
            raise PeerRefused(
                f"broker {peer.broker} has been started again since this one: restart it", pb.PEER_FORMER_LIFE
            )

    async def _dial_for_ever(self, peer: Peer) -> None:
        failures = 0
        while True:
            await peer.registered.wait()
            assert peer.address is not None
            began = asyncio.get_running_loop().time()
            try:
                await self._dial(peer, peer.address)
            except (TritonMQError, TimeoutError) as error:
                log.log(logging.INFO if failures == 0 else logging.DEBUG, "link to broker %d: %s", peer.broker, error)
            failures = 0 if asyncio.get_running_loop().time() - began > BACKOFF_S[-1] else failures + 1
            await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])

    async def _dial(self, peer: Peer, address: PeerAddress) -> None:
        wire = await connect(address.address, None if address.plain else self._tls)
        refused: PeerRefused | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                incarnation = await self._introduce(peer, address.address, wire)
            await self._converse(peer, incarnation, wire)
        except PeerRefused as error:
            refused = error
            raise
        finally:
            wire.close(refused)

    async def _introduce(self, peer: Peer, address: str, wire: FramedWire) -> int:
        """Say who this is, and be told who answers, both with proofs. Returns the life of the broker that answered."""
        mine = self._proof.hello(peer.broker)
        await wire.send(Envelope(pb.LinkHeader(hello=mine)))
        theirs = await wire.hello()
        if theirs.broker != peer.broker or theirs.to != self._me:
            raise PeerRefused(
                f"{address} is broker {theirs.broker}, not {peer.broker}: its --listen, --advertise or "
                "--peer-advertise is wrong",
                pb.PEER_WRONG_BROKER,
            )
        check_is_broker(peer.broker, wire.speaker())
        _check_nonce(theirs)
        require(theirs.proof, self._proof.of_acceptor(mine, theirs))
        _check_versions(mine, theirs)
        await self._known(peer, theirs.incarnation)
        await wire.send(Envelope(pb.LinkHeader(hello=pb.LinkHello(proof=self._proof.of_dialler(mine, theirs)))))
        await wire.hello()
        return theirs.incarnation

    async def _converse(self, peer: Peer, incarnation: int, wire: FramedWire) -> None:
        """Until either side ends. A newer connection of the same peer ends this one: the peer knows which is the good
        one."""
        ended = asyncio.Event()
        if self._closed:
            return
        self._end(peer)
        peer.incarnation = incarnation
        peer.ended = ended
        peer.wire = wire
        peer.beat()  # before anything else: what is heard from now on is heard in contact
        log.info("link to broker %d is up", peer.broker)
        self._listener.link_up(peer.broker)
        jobs = {
            asyncio.create_task(self._read(peer.broker, incarnation, wire, ended)),
            asyncio.create_task(self._write(peer, wire, ended)),
            asyncio.create_task(_beat(peer, ended)),
            asyncio.create_task(_wait(ended)),
        }
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                job.result()
        except PeerRefused as error:
            self._refusals.note(error, peer.broker)
            raise
        finally:
            if peer.ended is ended:
                self._end(peer)
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    def _end(self, peer: Peer) -> None:
        if peer.ended is not None:
            ended, peer.ended = peer.ended, None
            peer.wire = None
            peer.forget()
            ended.set()
            log.info("link to broker %d is down", peer.broker)
            self._listener.link_down(peer.broker)

    async def _read(self, broker: int, incarnation: int, wire: FramedWire, ended: asyncio.Event) -> None:
        def hear(message: LinkMessage) -> None:
            if not ended.is_set():
                self._hear(broker, incarnation, message)

        await wire.listen(hear)

    def _hear(self, broker: int, incarnation: int, message: LinkMessage) -> None:
        header, hearer_of = message.header, self._listener.hearer
        _check_speaker(header, broker, incarnation)
        LINK_BYTES.add(str(broker), "in", n=told_bytes(message))
        if header.HasField("beat"):
            self._listener.link_beat(broker, dropped=header.beat.dropped)
        if message.parts or header.append:
            frames = split(message.payload, (length for append in header.append for length in append.frame_bytes))
            at = 0
            for append in header.append:
                count = len(append.frame_bytes)
                hearer_of(append.topic_id, append.partition).hear_entries(append, frames[at : at + count])
                at += count
        for ack in header.ack:
            hearer_of(ack.topic_id, ack.partition).hear_ack(ack)
        for so_far in header.so_far:
            hearer_of(so_far.topic_id, so_far.partition).hear_so_far(so_far)
        for part in header.snapshot:
            hearer_of(part.topic_id, part.partition).hear_snapshot(part)

    async def _write(self, peer: Peer, wire: FramedWire, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await peer.something.wait()
            if ended.is_set():
                return
            if not peer.has_something:  # it went at the end of a turn
                peer.something.clear()
                continue
            await wire.send(self._next_message(peer))
            if not peer.waiting:
                peer.written.set()

    def _next_message(self, peer: Peer) -> LinkMessage:
        dropped = peer.dropped
        message = peer.take()
        if dropped and not peer.dropped:
            peer.beat()
            self._listener.link_dropped(peer.broker)
        return message


async def _beat(peer: Peer, ended: asyncio.Event) -> None:
    while not ended.is_set():
        await asyncio.sleep(BEAT_S)
        peer.beat()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _check_nonce(hello: pb.LinkHello) -> None:
    if len(hello.nonce) != NONCE_BYTES:
        raise PeerRefused(
            f"a hello has a nonce of {NONCE_BYTES} bytes: it is from no broker of TritonMQ", pb.PEER_NO_HELLO
        )


def _check_versions(mine: pb.LinkHello, theirs: pb.LinkHello) -> None:
    """Raises `PeerRefused` if the two speak no protocol in common. To be called once it is proved who they are."""
    here, there = (Versions.said(each.protocol, each.protocol_oldest, each.release) for each in (mine, theirs))
    try:
        check_overlap(f"broker {mine.broker}", here, f"broker {theirs.broker}", there)
    except IncompatibleVersion as error:
        raise PeerRefused(str(error), pb.PEER_INCOMPATIBLE) from error


def _check_speaker(header: pb.LinkHeader, broker: int, incarnation: int) -> None:
    """Raises `PeerRefused` unless everything in the message is said by that life of that broker."""
    speakers = {(append.leader, append.incarnation) for append in header.append}
    speakers.update((ack.follower, ack.incarnation) for ack in header.ack)
    speakers.update((so_far.broker, so_far.incarnation) for so_far in header.so_far)
    speakers.update((part.leader, part.incarnation) for part in header.snapshot)
    for other, life in speakers:
        if (other, life) != (broker, incarnation):
            raise PeerRefused(
                f"a message in the name of broker {other}, start {life}, on the link of broker {broker}, start "
                f"{incarnation}",
                pb.PEER_NOT_ITSELF,
            )
