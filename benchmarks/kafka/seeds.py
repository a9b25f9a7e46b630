"""Figures that the designs which TritonMQ grew from have published, from other hardware: the order of magnitude, never
a ratio."""

from __future__ import annotations

from typing import Final, NamedTuple


class Seed(NamedTuple):
    """One published figure, and all that is said about what it was measured on."""

    system: str
    what: str
    figure: str
    hardware: str


_PAPER: Final = "2 laptops, wireless 100 Mbps, 50 ms round trip, 8.1 % loss; 9 brokers in 3 groups, 10 topics, 100 B"

SEEDS: Final = (
    Seed("TritonMQ, the paper", "produce, no consumer", "about 1,000 messages/s", _PAPER),
    Seed("TritonMQ, the paper", "one producer to one consumer", "about 200 messages/s", _PAPER),
    Seed("TritonMQ, the paper", "publish to received, least", "about 100 ms", _PAPER),
    Seed("TritonMQ, the paper", "fan-out", "up to 12 consumers (a figure without numbers)", _PAPER),
    Seed("Luxun", "in or out", "“hundreds of thousands of messages” a second (a goal)", "“modest hardware”"),
    Seed("RabbitMQ quorum queues, BlazingMQ, DMQP", "", "no figures published in these documents", ""),
)
