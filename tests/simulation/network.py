"""Simulated links: one for each ordered pair of brokers. They delay, drop, repeat, reorder, and can be cut one way
only."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mq_broker.core.messages import PeerConnected, PeerDisconnected, PeerMessage
from tests.simulation.loop import Loop

if TYPE_CHECKING:
    from tests.simulation.broker import Broker


@dataclass(slots=True)
class LinkCondition:
    """How links are doing, now: chances a message, and delays in milliseconds."""

    drop: float = 0.0
    repeat: float = 0.0
    reorder: float = 0.0
    delay_ms: tuple[float, float] = (0.2, 12.0)


class Network:
    """Owns what is in flight between brokers, which links are cut, and what each broker was told of its peers."""

    def __init__(self, loop: Loop, faults: Counter[str]) -> None:
        self.condition = LinkCondition()
        self.slow: dict[tuple[int, int], float] = {}
        self.brokers: dict[int, Broker] = {}
        self.seen: deque[tuple[int, PeerMessage]] = deque(maxlen=200)
        """The last messages that were sent: what one who lies may say again."""
        self._loop = loop
        self._faults = faults
        self._cut: set[tuple[int, int]] = set()
        self._last_arrival: dict[tuple[int, int], int] = {}
        self._told: dict[tuple[int, int, int], bool] = {}
        self._lost: set[tuple[int, int]] = set()
        """Links that lost a message since the last beat. A link of TCP that loses one is another link from then on."""

    # ------------------------------------------------------------------ messages

    def send(self, sender: int, to: int, partition: int, message: PeerMessage) -> None:
        loop, condition = self._loop, self.condition
        self.seen.append((partition, message))
        target = self.brokers[to]
        if (sender, to) in self._cut or not target.up:
            self._lost.add((sender, to))
            return
        if loop.chance(condition.drop):
            self._faults["message dropped"] += 1
            self._lost.add((sender, to))
            return
        delay = loop.often_short(*condition.delay_ms) + self.slow.get((sender, to), 0.0)
        arrival = loop.now_us + int(delay * 1000)
        in_order = not loop.chance(condition.reorder)
        if not in_order:
            self._faults["message overtaken"] += 1
            arrival += int(loop.between(0, 400) * 1000)
        else:
            arrival = max(arrival, self._last_arrival.get((sender, to), 0) + 1)
            self._last_arrival[sender, to] = arrival
        loop.after((arrival - loop.now_us) / 1000, self._arrive, sender, to, target.life, partition, message, in_order)
        if loop.chance(condition.repeat):
            self._faults["message repeated"] += 1
            late = (arrival - loop.now_us) / 1000 + loop.often_short(0, 3_000)
            loop.after(late, self._arrive, sender, to, target.life, partition, message, False)

    def _arrive(
        self,
        sender: int,
        to: int,
        life: int,
        partition: int,
        message: PeerMessage,
        in_order: bool,
    ) -> None:
        target = self.brokers[to]
        if target.life != life:
            return
        if (sender, to) in self._cut and self._loop.chance(0.7):
            self._lost.add((sender, to))
            return
        target.arrive(f"link {sender}", target.hear, partition, message, in_order)

    def beat(self, sender: int, to: int) -> None:
        """After what was sent before it, and it says if any of that was lost. The sender is told of that too."""
        loop, target, lost = self._loop, self.brokers[to], (sender, to) in self._lost
        if (sender, to) in self._cut or not target.up:
            return
        self._lost.discard((sender, to))
        delay = loop.often_short(*self.condition.delay_ms) + self.slow.get((sender, to), 0.0)
        arrival = max(loop.now_us + int(delay * 1000), self._last_arrival.get((sender, to), 0) + 1)
        self._last_arrival[sender, to] = arrival
        loop.after(
            (arrival - loop.now_us) / 1000, self._beaten, sender, self.brokers[sender].life, to, target.life, lost
        )
        if lost:
            self.brokers[sender].feed_all(PeerConnected(to))

    def _beaten(self, sender: int, sender_life: int, to: int, life: int, lost: bool) -> None:
        target = self.brokers[to]
        if target.life == life and (sender, to) not in self._cut:
            target.arrive(f"link {sender}", target.hear_beat, sender, sender_life, lost)
        else:
            self._lost.add((sender, to))

    # ------------------------------------------------------------------ links

    def cut(self, sender: int, to: int) -> None:
        self._cut.add((sender, to))
        self.look_again(sender, to)

    def mend(self, sender: int, to: int) -> None:
        self._cut.discard((sender, to))
        self.look_again(sender, to)

    def mend_all(self) -> None:
        for sender, to in sorted(self._cut):
            self.mend(sender, to)
        self.slow.clear()

    def blip(self, a: int, b: int) -> None:
        """A connection breaks and is made again at once: what was in flight is gone, in one direction at least."""
        self.cut(a, b)
        self._loop.after(self._loop.between(1, 60), self.mend, a, b)

    def look_again(self, a: int, b: int) -> None:
        """Sooner or later both ends learn how their link is. A black hole may take them seconds to notice."""
        for x, y in ((a, b), (b, a)):
            self._loop.after(self._loop.often_short(1, 3_000), self._tell, x, y)

    def broker_changed(self, broker: int) -> None:
        """It came or went: its peers, and itself, learn of it."""
        for other in sorted(self.brokers):
            if other != broker:
                self.look_again(broker, other)

    def _tell(self, broker: int, peer: int) -> None:
        me = self.brokers[broker]
        connected = self.brokers[peer].up and (broker, peer) not in self._cut and (peer, broker) not in self._cut
        key = (broker, me.life, peer)
        if not me.up or self._told.get(key, False) == connected:
            return
        self._told[key] = connected
        me.arrive("links", me.hear_link, PeerConnected(peer) if connected else PeerDisconnected(peer))
