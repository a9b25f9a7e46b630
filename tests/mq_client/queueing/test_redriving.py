"""Dead letters sent back, at a real broker."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from mq_client import Admin, InvalidRequest, Producer, Queue, Redriven, UnknownQueue, UnknownTopic
from mq_client.administration.peek import peek
from mq_client.queueing import redriving
from mq_protocol.arrow import RECORD_SCHEMA
from mq_protocol.queues.dead_letters import HEADERS
from tests.cluster.harness import wait_until

WAIT_MS = 30_000
GROUP = "workers"


def read(admin: Admin, topic: str) -> list[object]:
    return [record.value for record in peek(admin._connection, topic, {}, 10_000, WAIT_MS)]


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """By what is tested here: threads of other tests may log something too."""
    return [record.getMessage() for record in caplog.records if record.name == redriving.__name__]


def reject_all(bootstrap: str, admin: Admin, topic: str, count: int) -> None:
    """Make that many records of the topic dead letters."""
    with Queue(bootstrap, topic, GROUP, idle_ms=WAIT_MS) as queue:
        for _ in range(count):
            record = queue.take(WAIT_MS)
            assert record is not None
            record.reject("no")

    def done() -> bool:
        found = admin.describe_queue(topic, GROUP)
        return not (found.ready or found.leased or found.doomed or found.outbox)

    wait_until(done, "all are dead letters, and published")


def test_letters_go_back_to_where_they_came_from_as_they_were(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    with Producer(bootstrap) as producer:
        for number in range(3):
            producer.publish(topic, f"keyless {number}", partition=number, headers={"a": b"b"}, timestamp=77)
        keyed = producer.publish(topic, "keyed", key="k").result(30)
    reject_all(bootstrap, admin, topic, 4)
    told: list[int] = []
    assert admin.redrive_topic(f"{topic}.dead", on_sent=told.append) == Redriven({topic: 4}, {})
    assert sum(told) == 4
    [group] = admin.list_queues(f"{topic}.dead")
    assert (group.group, dict(group.settings)) == ("redrive", {"dead_letter": "park", "delivery_limit": "0"})
    wait_until(lambda: len(read(admin, topic)) == 8, "all that came back")
    found = peek(admin._connection, topic, {}, 100, WAIT_MS)
    back = [record for record in found if any(name == HEADERS["hops"] for name, _ in record.headers)]
    assert sorted((record.value, record.partition) for record in back) == [
        (b"keyed", keyed.partition), *((f"keyless {number}".encode(), number) for number in range(3))
    ]  # fmt: skip
    assert {record.headers for record in back if record.key is None} == {(("a", b"b"), (HEADERS["hops"], b"1"))}
    assert {record.timestamp for record in back if record.key is None} == {77}
    assert admin.redrive_topic(f"{topic}.dead") == Redriven({}, {}), "nothing is sent twice"
    reject_all(bootstrap, admin, topic, 4)
    letters = peek(admin._connection, f"{topic}.dead", {}, 100, WAIT_MS)
    assert sorted(dict(letter.headers)[HEADERS["hops"]] for letter in letters) == [b"1"] * 4 + [b"2"] * 4


def test_letters_go_by_topic_and_partition_and_those_with_a_key_by_their_key() -> None:
    def letter(key: str | None, number: bytes) -> dict[str, object]:
        facts = {HEADERS["topic"]: b"t", HEADERS["partition"]: number, "own": None}
        return {"key": key, "headers": [{"key": name, "value": value} for name, value in facts.items()]}

    letters = [letter("k", b"1"), letter(None, b"1"), letter(None, b"x"), letter(None, b"9" * 10), letter(None, b"1")]
    rows = pa.RecordBatch.from_pylist([*letters, {}], RECORD_SCHEMA)
    chosen = np.array([0, 1, 2, 3, 4, 5])
    found = [(piece.topic, piece.partition, piece.rows.tolist()) for piece in redriving.pieces_of(rows, chosen, None)]
    assert found == [("t", None, [0, 2, 3]), ("t", 1, [1, 4]), ("", None, [5])]
    [piece] = redriving.pieces_of(rows, chosen[1:3], "other")
    assert (piece.topic, piece.partition, piece.rows.tolist()) == ("other", None, [1, 2])
    assert piece.table.column("headers").to_pylist() == [[{"key": "own", "value": None}]] * 2
    first, second = piece.halves()
    assert (first.rows.tolist(), second.rows.tolist(), second.table.num_rows) == ([1], [2], 1)


def test_another_group_is_to_be_declared_and_what_others_have_settled_is_told(
    admin: Admin, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A new group sends every letter again, those too that were mended by hand."""
    dead = f"{topic}.dead"
    admin.create_topic(topic)
    admin.declare_queue(topic, GROUP)
    with pytest.raises(UnknownTopic, match=f"topic {topic} has no dead letters yet"):
        admin.redrive_topic(dead)
    admin.create_topic(dead)
    with Producer(bootstrap) as producer:
        for number in range(4):
            producer.publish(dead, str(number), headers={HEADERS["topic"]: topic.encode()}).result(30)
    assert len(admin.pop_queue(dead, admin.declare_queue(dead, "menders").group, 3)) == 3
    with pytest.raises(UnknownQueue, match=r"did you mean 'menders'\? its groups are menders\. .*declare=True"):
        admin.redrive_topic(dead, group="mender")
    assert [queue.group for queue in admin.list_queues(dead)] == ["menders"]
    assert admin.redrive_topic(dead, group="menders") == Redriven({topic: 1}, {})
    assert logged(caplog) == []
    assert admin.redrive_topic(dead) == Redriven({topic: 4}, {})
    [said] = logged(caplog)
    assert said.startswith(f"queue menders has settled letters of topic {dead} that queue redrive has not (4 of them)")
    caplog.clear()
    assert admin.redrive_topic(dead) == Redriven({}, {}), "all are settled, and nothing is said"
    assert logged(caplog) == []
    assert admin.redrive_topic(dead, group="again", declare=True).sent == {topic: 4}


def test_what_is_no_dead_letter_topic_is_refused_before_anything_is_lent(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)
    assert admin.redrive_topic(topic) == Redriven({}, {}), "it is empty"
    with Producer(bootstrap) as producer:
        producer.publish(topic, "a").result(30)
    with pytest.raises(InvalidRequest, match="holds no dead letters"):
        admin.redrive_topic(topic)
    typed = f"{topic}-typed"
    admin.create_topic(typed, schema="n long")
    with Producer(bootstrap) as producer:
        producer.publish_batch(typed, pa.table({"n": [1]})).result(30)
    with pytest.raises(InvalidRequest, match="holds no dead letters"):
        admin.redrive_topic(typed)
    with pytest.raises(UnknownTopic, match=f"did you mean '{topic}'"):
        admin.redrive_topic(f"{topic}x")
    with pytest.raises(UnknownTopic):
        admin.redrive_topic(topic, to=f"{topic}-no")
    with pytest.raises(InvalidRequest, match="the dead-letter topic itself"):
        admin.redrive_topic(topic, to=topic)
    for bad in ({"rate": 0}, {"rate": float("nan")}, {"limit": 0}):
        with pytest.raises(InvalidRequest, match=next(iter(bad))):
            admin.redrive_topic(topic, **bad)  # type: ignore[arg-type]
    assert admin.list_queues(topic) == []
