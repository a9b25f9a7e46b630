"""Work queues in a chaos run: two groups work off one topic, and what they did is told to the judge.

`loose` has no order: some records fail, some are rejected, and some are acknowledged with an output. `strict` works on
the records of a key one after another.
"""

from __future__ import annotations

import math
import threading
import time
import zlib
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from mq_client import LeasedRecord, LeaseLost, Queue, QueueDescription, Reader, TritonMQError
from tests.chaos.cluster import FireCluster
from tests.cluster.harness import wait_until
from tests.history.recording import Recorder

if TYPE_CHECKING:
    from tests.chaos.client import Work

JOBS: Final = "jobs"
LETTERS: Final = "jobs.dead"
MADE: Final = "made"
GROUPS: Final[dict[str, dict[str, str]]] = {
    "loose": {"lease_ms": "3s", "retry_ms": "100ms", "retry_ms_max": "1s", "delivery_limit": "4"},
    "strict": {"lease_ms": "3s", "retry_ms": "100ms", "retry_ms_max": "1s", "delivery_limit": "0", "order": "key"},
}
HELD: Final = 12
THREADS: Final = 2
LOOK_MS: Final = 300
STILL_S: Final = 60.0
POISON_ONE_OF: Final = 29
OUTPUT_ONE_OF: Final = 4
FAILS: Final = 0.04
BACK: Final = 0.03


def declare(cluster: FireCluster, partitions: int, replicas: int, durability: str) -> None:
    """The group's topic is there; the topic of outputs and the groups are made."""
    cluster.admin.create_topic(MADE, partitions=partitions, replicas=replicas, durability=durability)
    for group, settings in GROUPS.items():
        cluster.admin.declare_queue(JOBS, group, **settings)


# ---------------------------------------------------------------------- the member's process


def work_off(work: Work) -> None:
    """A member of both groups, with some threads each."""
    with work.recorder("") as recorder:
        ids = count(1)
        threads = [threading.Thread(target=_work, args=(work, group, recorder, ids), daemon=True) for group in GROUPS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _work(work: Work, group: str, recorder: Recorder, ids: count[int]) -> None:
    with Queue(work.bootstrap, JOBS, group, in_flight_max=HELD) as queue:
        hands = [
            threading.Thread(target=_hand, args=(work, group, queue, recorder, ids), daemon=True)
            for _ in range(THREADS)
        ]
        for hand in hands:
            hand.start()
        for hand in hands:
            hand.join()


def _hand(work: Work, group: str, queue: Queue, recorder: Recorder, ids: count[int]) -> None:
    while not work.end.is_set():
        try:
            record = queue.take(LOOK_MS)
        except TritonMQError as error:
            recorder.write("note", what="take", group=group, error=f"{type(error).__name__}: {error}"[:300])
            work.unfinished = work.unfinished or not error.retriable
            if work.end.wait(LOOK_MS / 1000):
                return
            continue
        if record is not None:
            _do(work, group, queue, record, recorder, next(ids))


def _do(work: Work, group: str, queue: Queue, record: LeasedRecord, recorder: Recorder, number: int) -> None:
    value = _text(record.value)
    recorder.write(
        "job",
        state="begin",
        id=number,
        group=group,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        value=value,
        key=_text(record.key),
        deliveries=record.deliveries,
        failures=record.failures,
    )
    work.end.wait(work.chance.random() / 100)
    word = _word(work, group, value or "")
    more: dict[str, Any] = {}
    try:
        if word == "output":
            more["outputs"] = queue.outputs()
            more["outputs"].publish(MADE, value)
        recorder.write("job", state="say", id=number, word=word)
        told = {
            "ack": record.ack,
            "output": partial(record.ack, **more),
            "fail": partial(record.fail, "once more"),
            "reject": partial(record.reject, "poison"),
            "release": record.release,
        }[word]()
    except TritonMQError as error:
        if word == "output" and not isinstance(error, LeaseLost):  # it is not known how far that came
            recorder.write("job", state="say", id=number, word=word)
        _answered(recorder, number, error)
        return
    told.add_done_callback(lambda done: _heard(recorder, number, done))


def _word(work: Work, group: str, value: str) -> str:
    number = zlib.crc32(value.encode())
    if group == "loose" and number % POISON_ONE_OF == 0:
        return "reject"
    chance = work.chance.random()
    if chance < FAILS + BACK:
        return "fail" if chance < FAILS else "release"
    return "output" if group == "loose" and number % OUTPUT_ONE_OF == 1 else "ack"


def _heard(recorder: Recorder, number: int, done: Future[None]) -> None:
    error = done.exception()
    if error is None:
        recorder.write("job", state="ok", id=number)
    else:
        _answered(recorder, number, error)


def _answered(recorder: Recorder, number: int, error: BaseException) -> None:
    state = "lost" if isinstance(error, LeaseLost) else "unknown"
    recorder.write("job", state=state, id=number, error=f"{type(error).__name__}: {error}"[:300])


def _text(value: Any) -> str | None:
    return None if value is None else bytes(value).decode()


# ---------------------------------------------------------------------- when all is over


def wait_until_worked_off(cluster: FireCluster, recorder: Recorder) -> None:
    """Every record of each group is settled, and what was decided is published. Raises `AssertionError` for the groups
    that stand still."""
    late = [error for group in GROUPS if (error := _work_off(cluster, group))]
    for group, settings in GROUPS.items():
        found = _described(cluster, group)
        if not _left(found):
            recorder.write(
                "worked", group=group, topic=JOBS, accepted=found.accepted, dead=found.dead, order="order" in settings
            )
    assert not late, "; ".join(late)


def _described(cluster: FireCluster, group: str) -> QueueDescription:
    found: QueueDescription = wait_until(lambda: cluster.admin.describe_queue(JOBS, group), f"{group} is described")
    return found


def _left(found: QueueDescription) -> int:
    """Records and decisions that are still to be dealt with."""
    return found.ready + found.leased + found.delayed + found.doomed + found.parked + found.outbox


def _work_off(cluster: FireCluster, group: str) -> str:
    """Waits for as long as there are ever fewer. What is wrong if there are not."""
    fewest, since = math.inf, time.monotonic()
    while left := _left(_described(cluster, group)):
        if left < fewest:
            fewest, since = left, time.monotonic()
        if time.monotonic() > since + STILL_S:
            return f"the queue {group} stands still: {left} records are left, and none fewer in {STILL_S:g} s"
        time.sleep(LOOK_MS / 1000)
    return ""


def tell_what_was_made(cluster: FireCluster, final: Recorder) -> None:
    """Each dead letter and each output; `loose` alone has them."""
    known = set(cluster.admin.list_topics())
    with Reader(cluster.bootstrap) as reader:
        for op, topic in (("letter", LETTERS), ("output", MADE)):
            for partition, (start, end) in cluster.admin.offsets(topic).items() if topic in known else ():
                for batch in reader.read(topic, partition, start, end):
                    for value in batch.column("value").to_pylist():
                        final.write(op, group="loose", value=_text(value))
