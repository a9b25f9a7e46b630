"""Replicas, leaders and brokers come and go by command while records are written: nothing lost, nothing twice, no
request fails."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from mq_client import Consumer, OffsetOutOfRange, Producer, Reader
from mq_client.cluster.lines import call_unary
from mq_client.shown.descriptions import PartitionDescription
from mq_dev.embedded_zookeeper import free_port
from mq_dev.local_cluster import HOST, BrokerProcess
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import DataLoss, TritonMQError
from mq_protocol.limits import OFFSETS_OF_A_LIFE
from tests import switch
from tests.cluster.harness import Cluster, wait_until
from tests.cluster.test_faults import TOPIC, expect_exactly_what_was_acknowledged
from tests.cluster.traffic import Traffic
from tests.mq_cli.processes import tritonmq
from tests.mq_spark.datasource.calls import VALUE, Stream

pytestmark = pytest.mark.cluster

SHORT_SESSIONS = ("--session-timeout-ms", "2000")

StartCluster = Callable[..., Cluster]


def command(cluster: Cluster, *words: str) -> str:
    """What it says. It must succeed."""
    result = tritonmq(*words, "--bootstrap", cluster.bootstrap)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode() + result.stderr.decode()


def partitions(cluster: Cluster, topic: str) -> tuple[PartitionDescription, ...]:
    return cluster.admin.describe_topic(topic).partitions


def replicas(cluster: Cluster, topic: str = TOPIC) -> dict[int, tuple[int, ...]]:
    return {partition.partition: partition.replicas for partition in cluster.admin.describe_topic(topic).partitions}


def holds(cluster: Cluster, *topics: str) -> Counter[int]:
    return Counter(broker for topic in topics for members in replicas(cluster, topic).values() for broker in members)


def not_in_sync(cluster: Cluster) -> dict[int, int]:
    """Brokers that are out of sync in the topic's only partition, and for how long nothing was heard of each (ms)."""
    result = tritonmq("cluster", "status", "--json", "--bootstrap", cluster.bootstrap)
    assert result.returncode == 0, result.stderr.decode()  # there it says who does not answer, beside that
    found = json.loads(result.stdout)["not_in_sync"]
    return {broker: place["unheard_ms"][str(broker)] for place in found for broker in place["brokers"]}


def wait_until_moved(cluster: Cluster) -> None:
    wait_until(lambda: not cluster.admin.moves(), "every move is over")


def wait_until_known(cluster: Cluster, target: tuple[int, ...]) -> None:
    wait_until(lambda: replicas(cluster)[0] == target, f"every broker has heard that the replicas are {target}")


def journals(cluster: Cluster, broker: int, topic: str = TOPIC) -> list[Any]:
    topic_id = cluster.admin.describe_topic(topic).topic_id
    return [path for path in cluster.brokers[broker].data_dir.rglob("log.json") if topic_id in path.read_text()]


def add_broker(cluster: Cluster, number: int) -> None:
    """Start one with a new id: that is all there is to adding it."""
    cluster.brokers[number] = BrokerProcess(number, free_port(HOST), cluster.directory, cluster.arguments)
    cluster.brokers[number].start()
    cluster.wait_until_serving()


def pause_and_start_move(cluster: Cluster, paused: int, through: int, to: tuple[int, ...]) -> None:
    """Asked of `through`: who is paused would not answer. No move goes to a broker that is taken for dead by then, and
    so it is woken, and paused again."""
    request = pb.StartMovesRequest(moves=[pb.PartitionMove(topic=TOPIC, partition=0, target=to)])

    def started() -> bool:
        cluster.pause(paused)
        address = cluster.brokers[through].address
        try:
            call_unary(address, "StartMoves", request, pb.StartMovesResponse, 10, switch.client())
        except TritonMQError:
            cluster.resume(paused)
            cluster.wait_until_serving()
            raise
        return True

    wait_until(started, f"a move to {to} is under way")


def stop_cleanly(cluster: Cluster, broker: int) -> None:
    cluster.brokers[broker].terminate()
    assert cluster.brokers[broker].wait(30), f"broker {broker} does not stop"


def test_a_partition_moves_while_it_is_written_and_whoever_drives_the_move_dies(start_cluster: StartCluster) -> None:
    cluster = start_cluster(4, arguments=SHORT_SESSIONS)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=2, min_insync_replicas=1)
    before = replicas(cluster)[0]
    target = tuple(sorted({1, 2, 3, 4} - set(before)))
    with Traffic(cluster.bootstrap, TOPIC) as load:
        load.until_acknowledged(200)
        command(cluster, "partition", "move", TOPIC, "0", "--to", ",".join(map(str, target)))
        wait_until_known(cluster, target)
        cluster.hand_over(TOPIC, target[0])  # its first replica, unless it could not follow in time
        for broker in before:
            wait_until(lambda broker=broker: cluster.admin.needed_by(broker) == 0, f"broker {broker} is needed no more")
            wait_until(lambda broker=broker: not journals(cluster, broker), "its replica is deleted")

        # so that the move cannot end before its driver dies
        pause_and_start_move(cluster, before[0], target[0], (before[0], target[1]))
        load.until_acknowledged(50)
        cluster.kill(target[0])
        cluster.resume(before[0])
        load.until_acknowledged(200)
        wait_until_moved(cluster)
        wait_until_known(cluster, (before[0], target[1]))
        wait_until(lambda: cluster.leader(TOPIC) in (before[0], target[1]), "one of them leads")
        cluster.restart(target[0])
        cluster.wait_until_serving()

        pause_and_start_move(cluster, before[1], before[0], (before[1], target[0]))
        assert "back where it came from" in command(cluster, "partition", "move", TOPIC, "0", "--cancel")
        wait_until_known(cluster, (before[0], target[1]))
        cluster.resume(before[1])
        load.until_acknowledged(100)
    expect_exactly_what_was_acknowledged(cluster, load)


def test_a_broker_is_added_and_another_drained_and_stopped(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3, arguments=SHORT_SESSIONS)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=3)
    cluster.admin.create_topic("wide", partitions=5, replicas=3, durability="os")
    drain = ("cluster", "drain", "2", "--bootstrap", cluster.bootstrap)
    refused = b"without broker 2 only 2 brokers are live (1, 3): start another one"
    wait_until(lambda: refused in tritonmq(*drain).stderr, "it is said why broker 2 cannot be drained")
    with Traffic(cluster.bootstrap, TOPIC) as load:
        load.until_acknowledged(100)
        add_broker(cluster, 4)
        planned = json.loads(command(cluster, "cluster", "balance", "--plan", "--json"))
        assert any(4 in move["to"] for move in planned)
        assert holds(cluster, "wide", TOPIC)[4] == 0, "a plan changes nothing"

        def spread() -> int:
            counts = holds(cluster, "wide", TOPIC)
            return max(counts.values()) - min(counts[broker] for broker in (1, 2, 3, 4))

        def balanced() -> bool:
            """A leader that stood still has lost what it led: that is asked for again."""
            command(cluster, "cluster", "balance")
            return cluster.admin.plan_balance() == []

        wait_until(balanced, "the last hand-over is over, and nothing is left to balance")
        wait_until(lambda: spread() <= 1, "every broker has heard of the moves")
        load.until_acknowledged(100)
        drained = command(cluster, "cluster", "drain", "2")
        assert "broker 2 holds nothing any more" in drained
        wait_until(lambda: set(holds(cluster, "wide", TOPIC)) == {1, 3, 4}, "every broker has heard of it")
        stop_cleanly(cluster, 2)
        load.until_acknowledged(100)
        wait_until(lambda: {b.id for b in cluster.admin.describe_cluster().brokers} == {1, 3, 4}, "the broker is gone")
        wait_until(
            lambda: all(set(p.isr) == set(p.replicas) == {1, 3, 4} for p in partitions(cluster, "wide")), "in sync"
        )
    expect_exactly_what_was_acknowledged(cluster, load)


@pytest.mark.long
def test_leaders_change_and_all_brokers_restart_in_turn_and_no_request_fails(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3, arguments=SHORT_SESSIONS)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=3)
    with Traffic(cluster.bootstrap, TOPIC) as load:
        load.until_acknowledged(100)
        command(cluster, "partition", "lead", TOPIC, "0", str(cluster.leader(TOPIC) % 3 + 1))
        for to in (1, 2, 3, 1):
            cluster.admin.transfer_leadership(TOPIC, 0, to)
            assert cluster.leader(TOPIC) == to
            load.until_acknowledged(50)
        refused = tritonmq("partition", "lead", TOPIC, "0", "9", "--bootstrap", cluster.bootstrap)
        assert (refused.returncode, b"broker 9 holds no replica" in refused.stderr) == (1, True)
        for broker in (1, 2, 3):
            stop_cleanly(cluster, broker)
            load.until_acknowledged(50)
            wait_until(
                lambda away=broker: away in not_in_sync(cluster),
                "it is told which replica is not in sync, and since when",
            )
            cluster.restart(broker)
            cluster.wait_for_isr(TOPIC, 3)
            load.until_acknowledged(50)
    expect_exactly_what_was_acknowledged(cluster, load)


def test_a_partition_whose_log_was_lost_goes_on_when_an_operator_says_so(start_cluster: StartCluster) -> None:
    cluster = start_cluster(1, zookeeper=False)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=1, durability="os")
    with Traffic(cluster.bootstrap, TOPIC) as load:
        load.until_acknowledged(100)
    refused = tritonmq("partition", "recover", TOPIC, "0", "--bootstrap", cluster.bootstrap)
    assert (refused.returncode, b"there is nothing to recover" in refused.stderr) == (1, True)
    cluster.kill(1)
    pretend_a_reboot(cluster, 1)
    cluster.restart(1)
    wait_until(lambda: cluster.leaders(TOPIC)[0] == 0, "nobody leads: the log may lack what it acknowledged")
    said: str = wait_until(lambda: recovered(cluster), "broker 1 answers for its replica, and it goes on")
    assert f"continues with the log of broker 1, which has the offsets below {len(load.sent)}" in said
    assert "lost: the records after them, if there were any; how many is unknown" in said
    assert "broker 1 leads" in said
    with Reader(cluster.bootstrap) as reader:
        assert values(reader.read(TOPIC, 0, 0, len(load.sent))) == list(range(len(load.sent)))


def recovered(cluster: Cluster, *options: str) -> str:
    """What the command says if it succeeds: a broker that has just begun may not know of its replica yet."""
    result = tritonmq("partition", "recover", TOPIC, "0", *options, "--bootstrap", cluster.bootstrap)
    return "" if result.returncode else result.stdout.decode() + result.stderr.decode()


def pretend_a_reboot(cluster: Cluster, broker: int) -> None:
    """What `os` topics of that broker hold was last written under another boot of the kernel."""
    for path in cluster.brokers[broker].data_dir.rglob("log.json"):
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, "boot_id": "another", "clean": False}))


def test_readers_are_told_once_what_was_lost_and_go_on_behind_it(
    start_cluster: StartCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = start_cluster(2, arguments=SHORT_SESSIONS)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=2, durability="os", min_insync_replicas=1)
    publish(cluster, range(100))
    stays = cluster.leader(TOPIC)
    goes = 3 - stays
    cluster.wait_for_isr(TOPIC, 2)
    cluster.kill(goes)
    cluster.wait_for_isr(TOPIC, 1)
    publish(cluster, range(100, 150))
    cluster.kill(stays)
    pretend_a_reboot(cluster, stays)
    cluster.restart(goes, wait=False)
    cluster.restart(stays, wait=False)
    cluster.wait_until_serving()
    wait_until(
        lambda: cluster.leaders(TOPIC) == {0: 0},
        "nobody leads: the log in sync is another now, and the other one lacks what was acknowledged",
    )
    said: str = wait_until(lambda: recovered(cluster, "--from", str(goes)), "the broker knows of its replica")
    assert "which has the offsets below 100" in said
    assert f"given up: the log of broker {stays}" in said
    publish(cluster, range(150, 200))
    cluster.wait_for_isr(TOPIC, 2)
    again = OFFSETS_OF_A_LIFE
    assert cluster.admin.offsets(TOPIC) == {0: (0, again + 50)}, "no offset is given twice"

    with Reader(cluster.bootstrap) as reader:
        with pytest.raises(OffsetOutOfRange, match=f"offsets 100 to {again - 1} were lost") as told:
            list(reader.read(TOPIC, 0, 0, again + 50))
        assert told.value.next_offset == again
        found = values(reader.read(TOPIC, 0, 0, 100)) + values(reader.read(TOPIC, 0, again, again + 50))
    assert found == [*range(100), *range(150, 200)]
    options = {"subscribe": TOPIC, "startingOffsets": json.dumps({TOPIC: {"0": 0}})}
    with pytest.raises(DataLoss, match="was lost in part or whole when that partition was recovered"):
        Stream(cluster.bootstrap, VALUE, **options).next()
    stream = Stream(cluster.bootstrap, VALUE, failOnDataLoss="false", maxOffsetsPerTrigger=30, **options)
    assert [int(row["value"]) for batch in stream.available_now() for row in batch] == found
    for options in ({"start": "earliest"}, {"start": "earliest", "group": "g"}):
        caplog.clear()
        with Consumer(cluster.bootstrap, **options) as consumer:  # type: ignore[arg-type]
            consumer.subscribe(TOPIC)
            records = [consumer.take(20_000) for _ in range(150)]
        assert [int(record.value) for record in records if record is not None] == found
        assert [r.getMessage() for r in caplog.records if "were lost" in r.getMessage()] == [
            f"{TOPIC}-0: offsets 100 to {again - 1} were lost when the partition was recovered: go on at {again}"
        ]


def publish(cluster: Cluster, numbers: range) -> None:
    with Producer(cluster.bootstrap) as producer:
        for future in [producer.publish(TOPIC, str(number), partition=0) for number in numbers]:
            future.result(30)


def values(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]
