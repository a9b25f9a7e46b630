"""`tritonmq queue` and `tritonmq work`, against a broker."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_cli.main import MISUSED, REFUSED
from mq_cli.work import _pass_on
from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster
from tests.mq_cli.processes import Command, Outcome, tritonmq


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
    assert (row["ready"], row["accepted"], row["paused"]) == ("3", "0", "no")
    assert run(cluster, "queue", "peek", "jobs", "g", "-n", "2").stdout == b"a\nb\n"
    assert run(cluster, "queue", "pop", "jobs", "g").stdout == b"a\n"
    assert run(cluster, "queue", "pause", "jobs", "g").returncode == 0
    found = json.loads(run(cluster, "queue", "describe", "jobs", "g", "-p", "0", "--json").stdout)
    assert (found["ready"], found["accepted"]) == (2, 1)
    assert found["settings"] == {"lease_ms": "5m", "paused": "true", "dead_letter": "jobs.dead"}
    assert [(run["first"], run["end"], run["state"]) for run in found["records"]] == [(1, 3, "ready")]
    assert run(cluster, "queue", "alter", "jobs", "g", "--set", "lease_ms=").returncode == 0
    assert run(cluster, "queue", "resume", "jobs", "g").returncode == 0
    told = run(cluster, "queue", "describe", "jobs", "g").stdout.decode()
    assert "lease_ms = 30s (default)" in told
    assert "dead_letter = jobs.dead (default)" in told
    assert run(cluster, "queue", "purge", "jobs", "g").returncode == REFUSED  # nobody is there to ask
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
    done = run(cluster, "work", "t", "g", "-c", "2", "--timeout", "0.5", "--", sys.executable, "-c", script)
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


def test_ctrl_c_lets_the_running_command_end_and_gives_back_the_rest(cluster: LocalCluster) -> None:
    admin = publish(cluster, "slow", *"abc")
    code = "import sys, time; print(sys.stdin.read(), flush=True); time.sleep(1)"
    with Command("work", "slow", "g", "--bootstrap", cluster.bootstrap, "--", sys.executable, "-c", code) as command:
        assert command.line() == "a"
        assert command.end(signal.SIGINT) == 0
    found = admin.describe_queue("slow", "g")
    assert (found.accepted, found.ready, found.leased, found.charged) == (1, 2, 0, 0)


def test_a_command_that_cannot_be_run_is_refused_before_any_record_is_lent() -> None:
    done = tritonmq("work", "t", "g", "--bootstrap", "127.0.0.1:1", "--", "no-such-command")
    assert done.returncode == MISUSED
    assert b"no-such-command" in done.stderr


def test_of_what_a_command_says_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed_on = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(passed_on))
    said = tmp_path / "said"
    said.write_text("ü" * 5_000 + "the end\n")
    assert _pass_on(said.open("rb")).endswith("üthe end")
    assert passed_on.getvalue() == said.read_bytes()
    assert len(_pass_on(said.open("rb")).encode()) <= 240
