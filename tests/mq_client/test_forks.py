"""Child processes of a client: those that become other programs do, and those that cannot use a client are told so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mq_client import Admin, forks

_SPAWN = """
import subprocess, sys, threading
from mq_client import Producer

bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
over = threading.Event()

def work(producer):
    while not over.wait(0.001):
        for _ in range(20):
            producer.publish(topic, b"x" * 100)

with Producer(bootstrap, timeout_ms=600_000) as producer:
    busy = threading.Thread(target=work, args=(producer,))
    busy.start()
    try:  # as PySpark starts Java
        ended = [
            subprocess.run(["/bin/true"], preexec_fn=lambda: None, stderr=subprocess.DEVNULL) for _ in range(count)
        ]
    finally:
        over.set()
        busy.join()
print([child.returncode for child in ended if child.returncode])
"""

_FORK = """
import os, sys
from mq_client import InvalidRequest, Producer
import mq_client.producer

bootstrap, topic, used = sys.argv[1], sys.argv[2], sys.argv[3] == "used"
if used:
    parents = Producer(bootstrap)
    parents.publish(topic, b"parent").result(30)
child = os.fork()
if child == 0:
    try:
        print(Producer(bootstrap).publish(topic, b"child").result(30).topic == topic, flush=True)
    except InvalidRequest as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def _run(code: str, *arguments: str, variable: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != forks.VARIABLE}
    if variable is not None:
        environment[forks.VARIABLE] = variable
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_no_child_process_dies_beside_a_busy_producer(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, durability="memory")
    ran = _run(_SPAWN, bootstrap, topic, "100")
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr[-2_000:]


def test_a_process_forked_before_the_first_client_is_used_can_use_one(bootstrap: str, admin: Admin, topic: str) -> None:
    """So do Spark's Python workers: the daemon that forks them uses none."""
    admin.create_topic(topic)
    assert _run(_FORK, bootstrap, topic, "unused").stdout == "True\n"


def test_a_process_forked_later_is_told_that_it_cannot(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    assert "forked from one in which clients of TritonMQ were in use" in _run(_FORK, bootstrap, topic, "used").stdout


def test_what_the_environment_says_of_forks_is_left_alone() -> None:
    assert _run("import mq_client, os; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])", variable="1").stdout == "1\n"


@pytest.mark.parametrize("variable", [None, "0"])
def test_a_process_that_imported_grpc_first_is_told_what_to_do(variable: str | None) -> None:
    ran = _run("import grpc, mq_client, mq_client.producer", variable=variable)
    assert ran.stderr.count("Import mq_client first, or set GRPC_ENABLE_FORK_SUPPORT=0") == (variable is None)
    assert _run("import mq_client, grpc").stderr == ""


# ---------------------------------------------------------------- the same in this process, where nothing is forked
