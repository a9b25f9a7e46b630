"""`tritonmq doctor` names each fault with its cure, and has nothing against what is well."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mq_cli.machines import doctor
from mq_cli.machines.doctor import Line
from mq_client import (
    BrokerObservation,
    ClusterObservation,
    GroupObservation,
    PartitionDescription,
    PartitionMove,
    StagedSum,
    TopicDescription,
    TransactionDescription,
)
from mq_protocol.arrow import RECORD_SCHEMA
from tests.mq_broker.broker.cluster import standalone
from tests.mq_broker.broker.principals import judging

NOW_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000
BROKERS = tuple(
    BrokerObservation(number, f"b{number}:1", 1, "0.3.0", "serving", "connected", NOW_US, {}, {}) for number in (1, 2)
)
PARTITION = PartitionDescription(0, 1, 4, (1, 2), (1, 2))
TOPIC = TopicDescription("t", "id", RECORD_SCHEMA, False, {"retention_ms": "3600000"}, (PARTITION,))
GROUP = GroupObservation("g", "t", "spark", 1, 7, 70, 60_000_000, NOW_US)
STAGED = TransactionDescription("q", "", staged=(StagedSum("t", 0, 3, 30, 300, 1, 2, NOW_US - 60_000_000, False),))
WELL = ClusterObservation("c1", BROKERS, groups=(GROUP,))


def of_cluster(observed: ClusterObservation = WELL, **given: Any) -> list[Line]:
    told: dict[str, Any] = {"reasons": {}, "topics": [TOPIC], "moves": [], "transactions": [STAGED], **given}
    return list(doctor.of_cluster(observed, *told.values(), NOW_US))


def with_partition(**changes: Any) -> list[TopicDescription]:
    return [replace(TOPIC, partitions=(replace(PARTITION, **changes),))]


def with_broker(**changes: Any) -> ClusterObservation:
    return replace(WELL, brokers=(BROKERS[0], replace(BROKERS[1], **changes)))


FAULTS: list[tuple[str, list[Line], str, str]] = [
    ("an old Python", [doctor.of_python((3, 10), "1")], "Python 3.10", "3.11 or newer"),
    ("an old Java", [doctor.of_java("/j", 11)], "Java 11", "Java 17"),
    ("a program that is no Java", [doctor.of_java("/j", None)], "no version", "Java 17"),
    ("an old PySpark", [doctor.of_pyspark("3.5.1", (3, 11), None, "")], "PySpark 3.5.1", "pip install"),
    (
        "workers with another Python",
        [doctor.of_pyspark("4.2.0", (3, 11), (3, 12), "python3.12")],
        "Python 3.12, and this one is 3.11",
        "PYSPARK_PYTHON",
    ),
    ("no such Python", [doctor.of_pyspark("4.2.0", (3, 11), None, "/x")], "/x cannot be started", "installed"),
    ("few open files", [doctor.of_open_files(1024)], "1,024 files", "ulimit"),
    ("a slow disk", list(doctor.of_disk("/d", 0.05, 9, 10)), "50.0 ms", "faster disk"),
    ("a full disk", list(doctor.of_disk("/d", 0.001, 1, 100)), "1 B of 100 B", "make room"),
    ("a refused address", list(doctor.of_addresses({"a:1": "refused"}, {})), "a:1 of --bootstrap: refused", "start"),
    ("nobody named one", list(doctor.of_addresses({"a:1": "refused"}, {}, "")), "no broker was named", "--here"),
    ("no broker there", list(doctor.of_addresses({"a:1": None}, {})), "does not answer as a broker", "--certs"),
    (
        "two clusters",
        list(doctor.of_addresses({"a:1": None, "b:1": None}, {"a:1": "c1", "b:1": "c2"})),
        "several clusters: a:1 is of c1; b:1 is of c2",
        "one cluster",
    ),
    ("a silent broker", of_cluster(replace(WELL, silent=("b3:1",))), "b3:1 does not answer", "log"),
    (
        "an advertised address that is not reached",
        of_cluster(replace(WELL, silent=("b3:1",)), reasons={"b3:1": "no such host"}),
        "advertises b3:1, which cannot be reached from here: no such host",
        "--advertise",
    ),
    ("no session", of_cluster(with_broker(coordination="suspended")), "broker 2 has no session", "ZooKeeper"),
    ("a clock", of_cluster(with_broker(now_us=NOW_US - 2_500_000)), "clock of broker 2 is 2.5 s", "NTP"),
    ("no leader", of_cluster(topics=with_partition(leader=0)), "without a leader: t-0", "partition recover"),
    (
        "a broker without keys",
        of_cluster(with_broker(values={"partitions_without_key": 3.0})),
        "broker 2 lacks the key of 3 partitions",
        "--encrypt of the right keys",
    ),
    (
        "what was altered on a disk",
        of_cluster(with_broker(values={"partitions_altered": 1.0})),
        "broker 2 keeps 1 partition closed: altered",
        "docs/encryption.md",
    ),
    ("out of sync", of_cluster(topics=with_partition(isr=(1,))), "not fully in sync: t-0", "wait"),
    (
        "an absent broker",
        of_cluster(topics=with_partition(replicas=(1, 3), isr=(1,))),
        "not fully in sync (absent: 3): t-0",
        "cluster drain",
    ),
    (
        "a group that will lose records",
        of_cluster(replace(WELL, groups=(replace(GROUP, lag_us=HOUR_US * 9 // 10),))),
        "group g is 54m behind in t, which keeps 1h",
        "start its consumers",
    ),
    (
        "what a dead query staged",
        of_cluster(transactions=[replace(STAGED, staged=(replace(STAGED.staged[0], since_us=NOW_US - 2 * HOUR_US),))]),
        "query q staged what it has not decided on for 2h",
        "transaction abort q",
    ),
]


@pytest.mark.parametrize(("lines", "told", "cure"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_each_fault_is_named_with_its_cure(lines: list[Line], told: str, cure: str) -> None:
    (line,) = [each for each in lines if each.kind == "wrong"]
    assert told in line.what
    assert cure in line.cure


def test_where_a_key_is_missing_nobody_is_sent_to_a_recovery() -> None:
    lines = of_cluster(with_broker(values={"partitions_without_key": 3.0}), topics=with_partition(leader=0))
    told = [(line.what, line.cure) for line in lines if line.kind == "wrong"]
    assert [what for what, _ in told] == ["broker 2 lacks the key of 3 partitions", "1 partition without a leader: t-0"]
    assert not any("recover`" in cure for _, cure in told)


def test_what_is_well_is_not_wrong() -> None:
    lines = [
        doctor.of_python((3, 11), "1"),
        doctor.of_java("/j", 17),
        doctor.of_java(None, None),
        doctor.of_pyspark("4.2.0", (3, 11), (3, 11), "python3"),
        doctor.of_pyspark(None, (3, 11), None, ""),
        doctor.of_open_files(65_536),
        *doctor.of_disk("/d", 0.005, 50, 100),
        *doctor.of_addresses({"a:1": None, "b:1": None}, {"a:1": "c1", "b:1": "c1"}),
        *of_cluster(),
        *of_cluster(with_broker(version="0.2.0", state="draining", now_us=NOW_US + 900_000)),
        *of_cluster(moves=[PartitionMove("t", 0, (1, 2), (1, 3))]),
        *of_cluster(topics=[replace(TOPIC, settings={})]),
        *of_cluster(topics=[replace(TOPIC, settings={"retention_ms": "1h"})]),
    ]
    assert [line for line in lines if line.kind == "wrong"] == []
    assert not any(line.cure for line in lines)


async def asked(*words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, doctor.doctor, list(words), standalone_mode=False)


@pytest.fixture
def well_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever machine the tests run on."""
    monkeypatch.setattr(doctor, "_of_this_machine", lambda _data: [Line("ok", "this machine")])
    return


def found(result: Result) -> list[dict[str, str]]:
    lines, _ = json.JSONDecoder().raw_decode(result.stdout)
    return [line for line in lines if line["kind"] == "wrong"]


@pytest.mark.usefixtures("well_here")
def test_a_broker_that_is_well_and_addresses_that_are_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            well = await asked("--bootstrap", broker.address, "--json")
            assert (well.return_value, found(well)) == (0, []), well.output
            with socket.socket() as unused, socket.socket() as mute:
                unused.bind(("127.0.0.1", 0))
                mute.bind(("127.0.0.1", 0))
                mute.listen()
                refused, silent = (f"127.0.0.1:{each.getsockname()[1]}" for each in (unused, mute))
                both = await asked("--bootstrap", f"{broker.address},{refused},{silent}", "--json", "--timeout", "3")
            assert both.return_value == 1
            assert [line["what"].split(" of ")[0] for line in found(both)] == [refused, silent]
        gone = await asked("--bootstrap", broker.address)
        assert gone.return_value == 1
        assert "-> start that broker" in gone.output

    asyncio.run(scenario())


@pytest.mark.usefixtures("well_here")
def test_whoever_is_no_administrator_is_told_all_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with judging(tmp_path) as broker:
            result = await asked("--bootstrap", broker.address, "--json")
        assert (result.return_value, found(result)) == (0, []), result.output
        told = [line["what"] for line in json.JSONDecoder().raw_decode(result.stdout)[0]]
        assert any(line.startswith("1 broker of cluster") for line in told)
        (denied,) = (line for line in told if "no right" in line)
        assert denied.startswith("partitions on the move were not looked at: User:ANONYMOUS has no right Describe on")

    asyncio.run(scenario())


def test_this_machine_is_looked_at_and_nothing_is_left_in_the_data_directory(tmp_path: Path) -> None:
    result = CliRunner().invoke(doctor.doctor, ["--here", "--data", str(tmp_path), "--json"], standalone_mode=False)
    lines, _ = json.JSONDecoder().raw_decode(result.stdout)
    told = " / ".join(line["what"] for line in lines)
    for part in ("Python 3.", "Java", "PySpark", "files open", "durably", "are free"):
        assert part in told
    assert list(tmp_path.iterdir()) == []
