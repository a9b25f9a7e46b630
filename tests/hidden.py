"""Brokers that advertise names which mean nothing here, so that no client reaches them but by who passes on."""

from __future__ import annotations

from typing import TypeVar

from mq_dev.local_cluster import HOST, LocalCluster

DOMAIN = ".hidden"

C = TypeVar("C", bound=LocalCluster)


def name_of(broker: int) -> str:
    return f"broker-{broker}{DOMAIN}"


def hide(cluster: C) -> C:
    """One that has not been started yet. Its `bootstrap` is where it listens."""
    for number, broker in cluster.brokers.items():
        listened = f"{HOST}:{broker.port}"  # where other brokers reach it
        broker.arguments += ["--advertise", f"{name_of(number)}:{broker.port}", "--peer-advertise", listened]
        if broker.grpc:
            broker.arguments += ["--grpc-advertise", f"{name_of(number)}:{broker.grpc.rpartition(':')[2]}"]
    return cluster
