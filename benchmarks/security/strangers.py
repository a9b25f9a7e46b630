"""Connections of strangers with random bytes, at each port of a broker: how much it grows, and whether it serves."""

from __future__ import annotations

import itertools
import random
import socket
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import psutil

from benchmarks.security.ground import Ground, Row, resident_bytes
from mq_client import Admin
from mq_protocol.wire.framing import preamble

GROWN_BYTES_MAX: Final = 64 << 20
WORKERS: Final = 2
BEGINNINGS: Final = (
    b"",
    b"\x16\x03\x01",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\n",
    bytes(preamble(1, 1)),
)


def strangers(address: str, count: int, seed: int) -> int:
    """Connects so often, one after another; how often it was let in to say something."""
    host, _, port = address.rpartition(":")
    chance, heard = random.Random(seed), 0
    for _ in range(count):
        try:
            with socket.create_connection((host, int(port)), 5) as stranger:
                stranger.settimeout(1)
                stranger.sendall(chance.choice(BEGINNINGS) + chance.randbytes(chance.randrange(1, 5_000)))
                heard += 1
                if chance.random() < 0.05:
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(4_096):
                        pass
        except OSError:
            pass
    return heard


def ports(ground: Ground) -> dict[str, str]:
    """Addresses at which the broker listens, by what for."""
    [process] = ground.processes
    broker = ground.cluster.brokers[1]
    known = {broker.address: "clients", str(broker.http): "metrics"}
    listening = {
        f"{each.laddr.ip}:{each.laddr.port}"
        for each in process.net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    }
    others = itertools.count(1)
    return {known.get(address) or f"brokers and streams, {next(others)}": address for address in sorted(listening)}


def measured(ground: Ground, connections: int) -> list[Row]:
    """So many at each port."""
    [process] = ground.processes
    rows = []
    with ProcessPoolExecutor(WORKERS) as pool:
        for number, (what, address) in enumerate(ports(ground).items()):
            list(pool.map(strangers, [address] * WORKERS, [50] * WORKERS, range(WORKERS)))
            before = resident_bytes(process)
            each = -(-connections // WORKERS)
            seeds = [1_000 * (number + 1) + worker for worker in range(WORKERS)]
            heard = sum(pool.map(strangers, [address] * WORKERS, [each] * WORKERS, seeds))
            grown = resident_bytes(process) - before
            told = f"{grown / (1 << 20):.1f} MiB after {heard} connections"
            rows.append(Row(f"random bytes at the port for {what}", told, "< 64 MiB", grown < GROWN_BYTES_MAX))
    with Admin(ground.cluster.bootstrap, security=ground.cluster.security) as admin:
        assert admin.list_topics() is not None, "it serves"
    return rows
