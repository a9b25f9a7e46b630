"""`tritonmq queue` and `tritonmq work`, against a broker."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_cli.main import MISUSED, REFUSED
from mq_client import Admin, Producer, Queue
from mq_dev.local_cluster import LocalCluster
from tests import switch
from tests.cluster.harness import wait_until
from tests.mq_cli.processes import WAIT_S, Command, Outcome, tritonmq


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("queue")) as started:
        yield started


def publish(cluster: LocalCluster, topic: str, *values: str, partitions: int = 1) -> Admin:
    admin = Admin(cluster.bootstrap)
    admin.create_topic(topic, partitions=partitions)
    with Producer(cluster.bootstrap) as producer:
        for value in values:
            producer.publish(topic, value, key=f"key of {value}")
    return admin


def run(cluster: LocalCluster, *arguments: str) -> Outcome:
    at = ("--bootstrap", cluster.bootstrap)
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return tritonmq(*arguments[:place], *at, *arguments[place:])


def test_a_queue_is_declared_looked_at_changed_and_deleted(cluster: LocalCluster) -> None:
    publish(cluster, "jobs", "a", "b", "c")
    assert run(cluster, "queue", "declare", "jobs", "g", "--set", "lease_ms=5m").returncode == 0
    again = run(cluster, "queue", "declare", "jobs", "g")
    assert (again.returncode, b"exists already" in again.stderr) == (REFUSED, True)
    assert run(cluster, "queue", "declare", "jobs", "g", "--if-not-exists").returncode == 0
    wrong = run(cluster, "queue", "declare", "jobs", "h", "--set", "lease_mss=5m")
    assert wrong.returncode == MISUSED
    assert b"did you mean 'lease_ms'" in wrong.stderr

    listed = run(cluster, "queue", "list").stdout.decode().splitlines()
    header, line = listed[0].split("\t"), next(line for line in listed if line.startswith("jobs\tg"))
    row = dict(zip(header, line.split("\t"), strict=True))
    assert (row["ready"], row["accepted"], row["dead"], row["paused"]) == ("3", "0", "0", "no")
    assert run(cluster, "queue", "peek", "jobs", "g", "-n", "2").stdout == b"a\nb\n"
    assert run(cluster, "queue", "pop", "jobs", "g").stdout == b"a\n"
    assert run(cluster, "queue", "pause", "jobs", "g").returncode == 0
    nothing = run(cluster, "queue", "pop", "jobs", "g")
    assert (nothing.stdout, nothing.returncode, b"is paused" in nothing.stderr) == (b"", 0, True)
    found = json.loads(run(cluster, "queue", "describe", "jobs", "g", "-p", "0", "--json").stdout)
    assert (found["ready"], found["accepted"]) == (2, 1)
    assert found["settings"] == {"lease_ms": "5m", "paused": "true", "dead_letter": "jobs.dead"}
    assert [(run["first"], run["end"], run["state"]) for run in found["records"]] == [(1, 3, "ready")]
    assert run(cluster, "queue", "alter", "jobs", "g", "--set", "lease_ms=").returncode == 0
    assert run(cluster, "queue", "resume", "jobs", "g").returncode == 0
    told = run(cluster, "queue", "describe", "jobs", "g").stdout.decode()
    assert "lease_ms = 30s (default)" in told
    assert "dead_letter = jobs.dead (default)" in told
    unasked = run(cluster, "queue", "purge", "jobs", "g")
    assert unasked.returncode == REFUSED
    assert unasked.stderr.startswith(b"Error: give --yes: there is no terminal")
    assert run(cluster, "queue", "purge", "jobs", "g", "--yes").stdout == b"partition\tmessages\n0\t2\n"
    assert run(cluster, "queue", "delete", "jobs", "g", "--yes").returncode == 0
    assert run(cluster, "queue", "describe", "jobs", "g").returncode == REFUSED


def test_a_command_runs_for_each_record_and_its_exit_code_says_what_becomes_of_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    admin = publish(cluster, "t", "good", "later", "bad", partitions=2)
    admin.declare_queue("t", "g", delivery_limit=1, dead_letter="park")
    script = (
        "import os, sys; value = sys.stdin.read();"
        f"open({str(tmp_path)!r} + '/' + value, 'a').write(' '.join(os.environ['TRITONMQ_' + name] for name in"
        " ('TOPIC', 'PARTITION', 'OFFSET', 'DELIVERIES', 'FAILURES', 'KEY')) + '\\n');"
        "print('cannot do ' + value, file=sys.stderr) if value == 'bad' else None;"
        "sys.exit({'good': 0, 'bad': 3, 'later': 75 if os.environ['TRITONMQ_DELIVERIES'] == '1' else 0}[value])"
    )
    done = run(cluster, "work", "t", "g", "-c", "2", "--max", "4", "--", sys.executable, "-c", script)
    assert done.returncode == 0
    assert b"cannot do bad" in done.stderr
    for value, deliveries in (("good", 1), ("later", 2), ("bad", 1)):
        lines = (tmp_path / value).read_text().splitlines()
        assert [line.split(" ", 5)[3:] for line in lines] == [
            [str(number + 1), "0", f"key of {value}"] for number in range(deliveries)
        ]
    found = admin.describe_queue("t", "g")
    assert (found.accepted, found.parked + found.doomed) == (2, 1)
    errors = [r.error for number in (0, 1) for r in admin.queue_records("t", "g", number)]
    assert errors == ["exit code 3: cannot do bad"]


def test_ctrl_c_lets_the_running_command_end_and_gives_back_the_rest(cluster: LocalCluster, tmp_path: Path) -> None:
    admin = publish(cluster, "slow", *"abc")
    os.mkfifo(end := tmp_path / "end")
    code = f"import sys; print(sys.stdin.read(), flush=True); open({str(end)!r}).read()"
    at = ("--bootstrap", cluster.bootstrap)
    with Command("work", "slow", "g", "--declare", *at, "--", sys.executable, "-c", code) as command:
        assert command.line() == "a"
        command.process.send_signal(signal.SIGINT)
        command.remark_with("waiting for 1 command to end")
        end.write_text("now")
        assert command.process.wait(WAIT_S) == 0
    found = admin.describe_queue("slow", "g")
    assert (found.accepted, found.ready, found.leased, found.charged) == (1, 2, 0, 0)


def test_a_queue_that_is_not_declared_is_not_worked_off_unless_that_is_asked_for(cluster: LocalCluster) -> None:
    """A misspelt name would be a new queue, which has all records still to do."""
    admin = publish(cluster, "reports", "a", "b")
    admin.declare_queue("reports", "workers")
    for command in (("work", "reports", "wrokers", "--", "true"), ("queue", "pop", "reports", "wrokers")):
        done = run(cluster, *command)
        assert (done.returncode, done.stdout) == (REFUSED, b"")
        assert b"did you mean 'workers'?" in done.stderr
        assert b"`tritonmq queue declare reports wrokers`" in done.stderr
    assert b"--declare" in run(cluster, "work", "reports", "wrokers", "--", "true").stderr
    assert [info.group for info in admin.list_queues("reports")] == ["workers"]
    done = run(cluster, "work", "reports", "others", "--declare", "--max", "1", "--", "true")
    assert done.returncode == 0
    first, second = done.stderr.decode().splitlines()
    assert first == "declared queue others of topic reports: it begins with the topic's first record"
    assert second == "working on queue others of topic reports: 2 records ready"
    admin.pause_queue("reports", "others")
    done = run(cluster, "work", "reports", "others", "--timeout", "0.2", "--", "true")
    assert done.stderr.decode().splitlines() == [
        "working on queue others of topic reports: 1 record ready. It is paused, and lends nothing until "
        "`tritonmq queue resume reports others`"
    ]


def test_dead_letters_are_sent_back(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    admin = publish(cluster, "orders", "a", "b", "c")
    with Queue(cluster.bootstrap, "orders", "g") as queue:
        for _ in range(3):
            record = queue.take(10_000)
            assert record is not None
            record.reject("no")
    wait_until(lambda: admin.describe_queue("orders", "g").dead == 3, "its dead letters")
    wait_until(lambda: admin.describe_queue("orders", "g").outbox == 0, "they are published")
    mixed = run(cluster, "queue", "redrive", "orders", "g", "--rate", "5")
    assert (mixed.returncode, b"leave out GROUP" in mixed.stderr) == (MISUSED, True)
    refused = run(cluster, "queue", "redrive", "orders.dead", "--group", "redriv")
    assert (refused.returncode, b"give --declare" in refused.stderr) == (REFUSED, True)
    wrong = run(cluster, "queue", "redrive", "orders")
    assert (wrong.returncode, b"holds no dead letters" in wrong.stderr) == (REFUSED, True)
    some = run(cluster, "queue", "redrive", "orders.dead", "-n", "1")
    assert (some.returncode, some.stdout) == (0, b"topic\tletters\norders\t1\n"), "so many were asked for"
    with Producer(cluster.bootstrap) as producer:
        producer.publish("orders.dead", "no letter").result(30)
    rest = run(cluster, "queue", "redrive", "orders.dead", "--json")
    assert rest.returncode == 1
    told = json.loads(rest.stdout)
    assert (told["sent"], list(told["left"].values())) == ({"orders": 2}, [1])
    moved = run(cluster, "queue", "redrive", "orders.dead", "--to", "orders", "--group", "redrive")
    assert (moved.returncode, moved.stdout) == (0, b"topic\tletters\norders\t1\n")
    nothing = run(cluster, "queue", "redrive", "orders.dead")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, b"", b"no letters to send\n")
    again = run(cluster, "queue", "redrive", "orders.dead", "--group", "new", "--declare", "-n", "1")
    assert again.stdout == b"topic\tletters\norders\t1\n"
    assert "queue redrive has settled letters of topic orders.dead that queue new has not (4 of them)" in caplog.text


def test_a_command_that_cannot_be_run_is_refused_before_any_record_is_lent() -> None:
    done = tritonmq("work", "t", "g", "--bootstrap", "127.0.0.1:1", "--", "no-such-command")
    assert done.returncode == MISUSED
    assert b"no-such-command" in done.stderr


def test_describe_names_the_record_that_others_of_its_key_wait_for(cluster: LocalCluster) -> None:
    admin = Admin(cluster.bootstrap)
    admin.create_topic("ledger", partitions=1)
    with Producer(cluster.bootstrap) as producer:
        for value in ("first", "second", "third"):
            producer.publish("ledger", value, key="alice")
    assert (
        run(cluster, "queue", "declare", "ledger", "g", "--set", "order=key", "--set", "dead_letter=park").returncode
        == 0
    )
    assert run(cluster, "queue", "alter", "ledger", "g", "--set", "order_by=n").returncode == REFUSED
    with Queue(cluster.bootstrap, "ledger", "g") as queue:
        first = queue.take(20_000)
        assert first is not None
        assert first.value == b"first"
        first.reject("never")
        assert queue.take(300) is None
    wait_until(lambda: admin.describe_queue("ledger", "g").parked == 1, "it is parked")
    told = run(cluster, "queue", "describe", "ledger", "g").stderr.decode()
    assert "partition 0: records wait for offset 0, which has the key 'alice'" in told


@pytest.mark.processes
def test_ctrl_c_ends_the_wait_for_brokers_that_are_gone(tmp_path: Path) -> None:
    arguments = ("--id", "1", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--standalone")
    with Command("broker", *arguments, *switch.options()) as broker:
        at = broker.remark_with("broker 1 serves at").split("serves at ")[1].split(",")[0]
        switch.allow_everything(at)
        with Admin(at) as admin, Producer(at) as producer:
            admin.create_topic("t", replicas=1, min_insync_replicas=1)
            producer.publish("t", "a").result(30)
        kill = f"kill -9 {broker.pid}; echo killed"
        with Command("work", "t", "g", "--declare", "--bootstrap", at, "--", "sh", "-c", kill) as command:
            assert command.line() == "killed"
            broker.process.wait(30)
            command.process.send_signal(signal.SIGTERM)
            command.remark_with("waiting for")
            assert command.end(signal.SIGTERM) == REFUSED
            command.remark_with("what became of 1 record is not known")
