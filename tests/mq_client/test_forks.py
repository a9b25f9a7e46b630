"""Child processes of a client: those that become other programs do, and those that go on use clients of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mq_client import Admin
from mq_client.reader import Reader

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
from mq_client import Admin, Consumer, Lock, Producer, Queue, Reader

bootstrap, topic, used = sys.argv[1], sys.argv[2], sys.argv[3] == "used"

def use(name):
    with Producer(bootstrap) as producer, Admin(bootstrap) as admin, Reader(bootstrap) as reader:
        offset = producer.publish(topic, name).result(60).offset
        [rows] = reader.read(topic, 0, offset, offset + 1)
        assert rows.column("value").to_pylist() == [name]
        assert admin.offsets(topic)[0][1] > offset
    with Consumer(bootstrap, start="earliest") as consumer:
        consumer.subscribe(topic)
        assert consumer.take(60_000) is not None
    with Lock(bootstrap, topic + "-" + name.decode()) as lock:
        assert lock.token

if used:
    parents, held = Producer(bootstrap), Lock(bootstrap, topic)
    parents.publish(topic, b"before").result(60)
    pushed = Consumer(bootstrap)
    pushed.subscribe(topic)
    pushed.start()
    held.acquire()
    use(b"parent")
    sys.stdout.flush()
child = os.fork()
if child == 0:
    try:
        use(b"child")
        print("the child is done", flush=True)
    finally:
        os._exit(0)
os.waitpid(child, 0)
if used:
    parents.publish(topic, b"after").result(60)
    assert held.held
    held.release()
    pushed.stop()
print("the parent is done")
"""

_HOLD = """
import os, sys, time
from mq_client import Lock

held = Lock(sys.argv[1], sys.argv[2])
held.acquire()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), 9)
"""


def _run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=180, check=False
    )


def test_no_child_process_dies_beside_a_busy_producer(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, durability="memory")
    ran = _run(_SPAWN, bootstrap, topic, "100")
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr[-2_000:]


@pytest.mark.parametrize("used", ["used", "unused"])
def test_a_forked_process_uses_clients_anew_and_those_of_its_parent_go_on(
    bootstrap: str, admin: Admin, topic: str, used: str
) -> None:
    admin.create_topic(topic, partitions=1)
    ran = _run(_FORK, bootstrap, topic, used)
    assert (ran.stdout, ran.stderr) == ("the child is done\nthe parent is done\n", "")
    with Reader(bootstrap) as reader:
        found = [value for rows in reader.read(topic, 0) for value in rows.column("value").to_pylist()]
    assert found == ([b"before", b"parent", b"child", b"after"] if used == "used" else [b"child"])


def test_a_forked_process_keeps_no_connection_of_its_parent_open(bootstrap: str, topic: str) -> None:
    """Else the broker would wait for a holder that is gone, for as long as the child lives."""
    from mq_client import Lock

    with subprocess.Popen([sys.executable, "-c", _HOLD, bootstrap, topic], stdin=subprocess.PIPE) as parent:
        parent.wait(60)
        with Lock(bootstrap, topic, timeout_ms=9_000) as lock:  # a silent one is given up after 15 s
            assert lock.token > 1
        assert parent.stdin is not None
        parent.stdin.close()
