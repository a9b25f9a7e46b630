"""Three brokers that bring their own ZooKeeper: an ensemble of real servers, one beside each, that survives the loss of
one."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from mq_client import Admin, Producer, Reader
from mq_dev.embedded_zookeeper import free_port
from tests import switch
from tests.cluster.harness import wait_until
from tests.mq_cli.processes import Command

pytestmark = [pytest.mark.long, pytest.mark.cluster]


def test_brokers_go_on_when_one_of_them_is_killed_with_its_zookeeper(tmp_path: Path) -> None:
    servers = ",".join(f"{n}@127.0.0.1:{free_port()}:{free_port()}:{free_port()}" for n in (1, 2, 3))
    listen = {n: f"127.0.0.1:{free_port()}" for n in (1, 2, 3)}

    def command(n: int) -> Command:
        data = str(tmp_path / str(n))
        arguments = ("--id", str(n), "--listen", listen[n], "--data", data, "--zookeeper", f"embedded:{servers}")
        return Command("broker", *arguments, *switch.options(tmp_path), *switch.zookeeper_options())

    def zookeeper(n: int) -> int:
        return int((tmp_path / str(n) / "zookeeper" / "zookeeper.pid").read_text().split()[0])

    with contextlib.ExitStack() as stack:
        brokers = {n: stack.enter_context(command(n)) for n in (1, 2, 3)}
        for n in (1, 2, 3):
            brokers[n].remark_with(f"ZooKeeper {n} runs, with most of its ensemble")
            brokers[n].remark_with(f"broker {n} serves")
        switch.allow_everything(",".join(listen.values()))
        admin = Admin(",".join(listen.values()))
        wait_until(lambda: len(admin.describe_cluster().brokers) == 3, "three brokers know of one another")
        admin.create_topic("before", replicas=3)
        killed = admin.describe_topic("before").partitions[0].leader
        with Producer(",".join(listen.values())) as producer:
            producer.publish("before", "1").result(30)
            os.kill(brokers[killed].pid, signal.SIGKILL)
            os.kill(zookeeper(killed), signal.SIGKILL)
            producer.publish("before", "2").result(60)  # a leader is elected
        admin.create_topic("after", replicas=2)  # and the ensemble takes writes
        values = [
            v
            for batch in Reader(",".join(listen.values())).read("before", 0)
            for v in batch.column("value").to_pylist()
        ]
        assert values == [b"1", b"2"]

        back = stack.enter_context(command(killed))
        back.remark_with(f"broker {killed} serves")
        wait_until(lambda: len(admin.describe_topic("before").partitions[0].isr) == 3, "it is in sync again")

        other = 1 + killed % 3
        ended = zookeeper(other)
        os.kill(ended, signal.SIGKILL)
        brokers[other].remark_with("has ended, and is started again")
        wait_until(lambda: zookeeper(other) != ended, "its broker starts a ZooKeeper that has ended again")
