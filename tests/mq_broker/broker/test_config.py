"""What a broker may be told, and which addresses follow from it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.config import AutoCreate, BrokerConfig
from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import (
    CLIENT_MESSAGE_BYTES_MAX,
    MEMORY_HIGH_FLOOR,
    MESSAGE_BYTES_MAX,
    NAME_BYTES_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    REPLICAS_MAX,
)

HERE = socket.gethostname()


def config(listen: str = "127.0.0.1:0", broker: int = 1, **fields: Any) -> BrokerConfig:
    return BrokerConfig(broker, listen, Path("data"), **{"insecure": True, **fields})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"broker": 0}, "--id"),
        ({"broker": 1 << 31}, "--id"),
        ({"listen": "127.0.0.1"}, "--listen"),
        ({"advertised": "there"}, "--advertise"),
        ({"grpc": "there:port"}, "--grpc"),
        ({"grpc": "127.0.0.1:0", "grpc_advertised": "there"}, "--grpc-advertise"),
        ({"grpc_advertised": "there:1"}, "--grpc-advertise goes with --grpc"),
        ({"grpc_token": "127.0.0.1:0"}, "--grpc-token goes with --certs"),
        ({"grpc_token_advertised": "there:1"}, "--grpc-token-advertise goes with --grpc-token"),
        ({"flight": "there:port"}, "--flight"),
        ({"flight": "127.0.0.1:0", "flight_advertised": "there"}, "--flight-advertise"),
        ({"flight_advertised": "there:1"}, "--flight-advertise goes with --flight"),
        ({"peer_advertised": "there:70000"}, "--peer-advertise"),
        ({"rack": "r" * (NAME_BYTES_MAX + 1)}, "rack"),
        ({"message_bytes_max": CLIENT_MESSAGE_BYTES_MAX - 1}, "--message-bytes-max"),
        ({"message_bytes_max": MESSAGE_BYTES_MAX + 1}, "--message-bytes-max"),
        ({"connections_max": 0}, "--connections-max"),
        ({"memory_high": MEMORY_HIGH_FLOOR - 1}, "--memory-high"),
        ({"memory_high": 1}, "--memory-high"),
        ({"dedup_memory_max": 0}, "--dedup-memory-max"),
        ({"scrub_rate": -1}, "--scrub-rate"),
        ({"topic_name_max": 0}, "--topic-name-max"),
        ({"topic_name_max": NAME_BYTES_MAX + 1}, "--topic-name-max"),
    ],
)
def test_what_is_out_of_range_is_refused_by_the_name_of_its_option(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidSetting, match=named):
        config(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"broker": (1 << 31) - 1},
        {"message_bytes_max": CLIENT_MESSAGE_BYTES_MAX},
        {"message_bytes_max": MESSAGE_BYTES_MAX},
        {"connections_max": 1},
        {"memory_high": 0},
        {"memory_high": MEMORY_HIGH_FLOOR},
        {"dedup_memory_max": 1},
        {"scrub_rate": 0},
        {"topic_name_max": 1},
        {"topic_name_max": NAME_BYTES_MAX},
    ],
)
def test_the_ends_of_each_range_are_in_it(fields: dict[str, Any]) -> None:
    config(**fields)


@pytest.mark.parametrize(
    ("partitions", "replicas", "named"),
    [
        (0, 1, "--auto-create-partitions"),
        (PARTITIONS_PER_TOPIC_MAX + 1, 1, "--auto-create-partitions"),
        (1, 0, "--auto-create-replicas"),
        (1, REPLICAS_MAX + 1, "--auto-create-replicas"),
    ],
)
def test_what_no_topic_may_have_is_refused_when_the_broker_is_told_to_make_such(
    partitions: int, replicas: int, named: str
) -> None:
    AutoCreate(1, 1)
    AutoCreate(PARTITIONS_PER_TOPIC_MAX, REPLICAS_MAX)
    with pytest.raises(InvalidSetting, match=f"{named}=.* is out of range"):
        AutoCreate(partitions, replicas)


def test_clients_dial_what_was_advertised_or_else_where_it_listens_by_this_machines_name_if_that_is_anywhere() -> None:
    assert config("127.0.0.1:0").address(7) == "127.0.0.1:7"
    assert config(advertised="there:9").address(7) == "there:9"
    for anywhere in ("0.0.0.0:0", "[::]:0", ":0"):
        assert config(anywhere).address(7) == f"{HERE}:7"


def test_brokers_dial_what_was_advertised_to_them_or_what_clients_dial() -> None:
    assert config("10.0.0.1:7400").peer_address(8) == "10.0.0.1:8"
    assert config("10.0.0.1:7400", advertised="there:9").peer_address(8) == "there:9"
    assert config("0.0.0.0:7400").peer_address(8) == f"{HERE}:8"
    assert config(peer_advertised="elsewhere:5").peer_address(8) == "elsewhere:5"


def test_a_broker_without_a_zookeeper_stands_alone() -> None:
    assert config().make_coordination().condition == "file"
    assert config(zookeeper="127.0.0.1:2181").make_coordination().condition == "suspended"
    given: Any = object()
    assert config(zookeeper="127.0.0.1:2181", coordination=lambda: given).make_coordination() is given


@pytest.mark.parametrize("port", ["grpc", "flight", "grpc_token"])
def test_clients_of_a_further_port_are_told_its_host_or_what_stands_before_it(port: str) -> None:
    def told(at: int, listen: str, by: str = "127.0.0.1:0", **fields: Any) -> Any:
        made = config(by, certs=Path("certs"), insecure=False, **{port: listen, **fields})
        return getattr(made, f"{port}_address")(at)

    assert told(7, "10.0.0.3:7") == "10.0.0.3:7"
    assert told(8, "10.0.0.3:0") == "10.0.0.3:8"
    assert told(7, "0.0.0.0:7") == f"{HERE}:7"
    assert told(7, "0.0.0.0:7", "0.0.0.0:7400", advertised="there:9") == "there:7"
    assert told(7, "10.0.0.3:7", **{f"{port}_advertised": "elsewhere:5"}) == "elsewhere:5"
