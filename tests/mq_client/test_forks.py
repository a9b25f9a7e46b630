"""Child processes of a client: those that become other programs do, and those that cannot use a client are told so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mq_client import Admin, InvalidRequest, forks

_SPAWN = """
import subprocess, sys, threading
from mq_client import Producer

bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
over = threading.Event()

def work(producer):
    while not over.wait(0.001):
        for _ in range(200):
            producer.publish(topic, b"x" * 100)

with Producer(bootstrap) as producer:
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
    ran = _run(_SPAWN, bootstrap, topic, "400")
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr[-2_000:]


def test_a_process_forked_before_the_first_client_is_used_can_use_one(bootstrap: str, admin: Admin, topic: str) -> None:
    """So do Spark's Python workers: the daemon that forks them uses none."""
    admin.create_topic(topic)
    assert _run(_FORK, bootstrap, topic, "unused").stdout == "True\n"


def test_a_process_forked_later_is_told_that_it_cannot(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    assert "forked from one in which clients of TritonMQ were in use" in _run(_FORK, bootstrap, topic, "used").stdout


def test_what_the_environment_says_of_forks_is_left_alone(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    assert _run("import mq_client, os; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])", variable="1").stdout == "1\n"
    assert _run(_FORK, bootstrap, topic, "used", variable="1").stdout == "True\n"


@pytest.mark.parametrize("variable", [None, "0"])
def test_a_process_that_imported_grpc_first_is_told_what_to_do(variable: str | None) -> None:
    ran = _run("import grpc, mq_client, mq_client.producer", variable=variable)
    assert ran.stderr.count("Import mq_client first, or set GRPC_ENABLE_FORK_SUPPORT=0") == (variable is None)
    assert _run("import mq_client, grpc").stderr == ""


# ---------------------------------------------------------------- the same in this process, where nothing is forked


@pytest.fixture
def unsaid(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment says nothing of forks."""
    monkeypatch.setenv(forks.VARIABLE, "")  # so that it is put back, whatever the test leaves
    monkeypatch.delenv(forks.VARIABLE)
    yield
    os.environ.pop(forks.VARIABLE, None)


@pytest.mark.usefixtures("unsaid")
def test_grpc_is_told_to_leave_forks_alone_only_if_it_still_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", sys)
    with pytest.warns(RuntimeWarning, match="grpc was imported before mq_client"):
        forks.leave_children_alone()
    assert forks.VARIABLE not in os.environ  # it would be true of the children only
    monkeypatch.delitem(sys.modules, "grpc")
    forks.leave_children_alone()
    assert os.environ[forks.VARIABLE] == "0"
    monkeypatch.setenv(forks.VARIABLE, "1")
    forks.leave_children_alone()
    assert os.environ[forks.VARIABLE] == "1"


def test_only_a_child_of_a_process_that_used_a_client_cannot_use_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_used_here", False)
    monkeypatch.setattr(forks, "_used_before_the_fork", False)
    monkeypatch.setenv(forks.VARIABLE, "0")
    forks._after_fork()
    forks.check_usable()
    forks.note_used()
    forks.check_usable()
    forks._after_fork()
    for _ in range(2):  # nor can its own children
        with pytest.raises(InvalidRequest, match="was forked from one"):
            forks.check_usable()
        forks._after_fork()
    monkeypatch.setenv(forks.VARIABLE, "True")  # gRPC looks after it
    forks.check_usable()
    monkeypatch.delenv(forks.VARIABLE)
    forks.check_usable()
