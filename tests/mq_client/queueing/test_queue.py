"""Queues worked off at a real broker."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from itertools import islice

import pytest

from mq_client import (
    Admin,
    InvalidRequest,
    InvalidSetting,
    LeaseLost,
    Producer,
    Queue,
    SchemaMismatch,
    UnknownQueue,
    UnknownTopic,
)
from mq_client.queueing import sessions
from mq_client.queueing.queue import _close_all
from tests.cluster.harness import wait_until

WAIT_MS = 30_000


def publish(bootstrap: str, topic: str, *values: str, partition: int | None = None) -> None:
    with Producer(bootstrap) as producer:
        for value in values:
            producer.publish(topic, value, partition=partition)


def test_each_outcome_does_what_it_says(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    admin.declare_queue(topic, "g", retry_ms="50ms", delivery_limit=2, dead_letter="park")
    publish(bootstrap, topic, "done", "bad", "once", "never", "back")
    given: list[tuple[bytes, int, int]] = []
    with Queue(bootstrap, topic, "g", idle_ms=WAIT_MS) as queue:
        for record in islice(queue, 8):
            given.append((record.value, record.deliveries, record.failures))
            match record.value, record.deliveries:
                case b"bad", _:
                    record.reject("not understood")
                case (b"once", 1) | (b"never", _):
                    record.fail(ValueError("boom"))
                case b"back", 1:
                    record.release()
                case _:
                    record.ack()
    assert sorted(given) == [
        (b"back", 1, 0),
        (b"back", 2, 0),
        (b"bad", 1, 0),
        (b"done", 1, 0),
        (b"never", 1, 0),
        (b"never", 2, 1),
        (b"once", 1, 0),
        (b"once", 2, 1),
    ]
    found = admin.describe_queue(topic, "g")
    assert (found.accepted, found.parked + found.doomed, found.charged) == (3, 2, 3)
    assert (found.ready, found.leased, found.delayed, found.members) == (0, 0, 0, {})
    errors = {
        run.error for number in range(2) for run in admin.queue_records(topic, "g", number) if run.state != "leased"
    }
    assert errors == {"not understood", "boom"}
    wait_until(lambda: admin.describe_queue(topic, "g").parked == 2, "what failed is parked")
    assert sorted(record.value for record in admin.peek_queue(topic, "g", state="parked")) == [b"bad", b"never"]
    assert sum(admin.redrive_queue(topic, "g").values()) == 2
    assert sorted(record.value for record in admin.pop_queue(topic, "g", 5)) == [b"bad", b"never"]
    assert admin.pop_queue(topic, "g", 5) == []


def test_members_share_the_records_of_one_partition_and_closing_gives_back_uncharged(
    admin: Admin, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic(topic)
    publish(bootstrap, topic, *map(str, range(40)))
    idle = Queue(bootstrap, topic, "g", in_flight_max=10)
    first = idle.take(WAIT_MS)
    assert first is not None
    wait_until(lambda: admin.describe_queue(topic, "g").leased == 10, "it is lent what it may hold")
    assert admin.describe_queue(topic, "g").members == {idle.member_id: 10}
    done: Counter[bytes] = Counter()
    with Queue(bootstrap, topic, "g", in_flight_max=10) as queue:
        for _ in range(30):
            record = queue.take(WAIT_MS)
            assert record is not None
            record.ack()
            done[record.value] += 1
        first.ack().result(30)
        done[first.value] += 1
        assert idle.take(WAIT_MS) is not None, "in hand, and without an outcome"
        idle.close()
        for _ in range(9):
            record = queue.take(WAIT_MS)
            assert record is not None
            assert (record.deliveries, record.failures) == (2, 0)
            record.ack()
            done[record.value] += 1
    assert done == {str(number).encode(): 1 for number in range(40)}
    idle.close()
    assert [
        told for told in caplog.messages if "closed while 1 of its records were handed out and had no outcome" in told
    ]
    with pytest.raises(LeaseLost, match="closed"):
        first.fail("again")
    assert idle.take(100) is None
    for use in (idle.pop, idle.peek, idle.outputs, idle.__enter__):
        with pytest.raises(InvalidRequest, match="was closed: open another one"):
            use()


def test_an_error_that_leaves_the_queue_fails_the_record_in_hand_and_no_other(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)
    publish(bootstrap, topic, "poison", "fine", "next", "last")
    admin.declare_queue(topic, "g", retry_ms=0)

    def work(error: BaseException, *, settled: bool = False) -> None:
        with Queue(bootstrap, topic, "g", in_flight_max=3) as queue:
            for record in queue:
                if settled:
                    record.ack()
                raise error

    with pytest.raises(ValueError, match="bad"):
        work(ValueError("bad"))
    found = admin.describe_queue(topic, "g")
    assert (found.charged, found.ready, found.leased) == (1, 4, 0)
    assert [run.error for run in admin.queue_records(topic, "g", 0)][:1] == ["ValueError: bad"]
    with pytest.raises(KeyboardInterrupt):
        work(KeyboardInterrupt())
    with pytest.raises(ValueError, match="later"):
        work(ValueError("later"), settled=True)
    found = admin.describe_queue(topic, "g")
    assert (found.charged, found.accepted, found.ready, found.leased) == (1, 1, 3, 0)
    queue = Queue(bootstrap, topic, "g", in_flight_max=3)
    other = threading.Thread(target=queue.take, args=(WAIT_MS,))
    other.start()
    other.join()
    queue.__exit__(ValueError, ValueError("of a thread that has taken nothing"), None)
    assert admin.describe_queue(topic, "g").charged == 1


def test_a_queue_that_nobody_closed_gives_back_what_it_holds(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    publish(bootstrap, topic, "a", "b")
    for forget in (gc.collect, _close_all):  # nobody has it any more; the process ends
        queue = Queue(bootstrap, topic, "g")
        assert queue.take(WAIT_MS) is not None
        wait_until(lambda: admin.describe_queue(topic, "g").leased == 2, "both are lent")
        if forget is gc.collect:
            del queue
        forget()
        wait_until(lambda: admin.describe_queue(topic, "g").leased == 0, "nothing is held")
    assert (admin.describe_queue(topic, "g").ready, admin.describe_queue(topic, "g").charged) == (2, 0)


def test_a_lease_runs_out_for_what_is_worked_on_and_not_for_what_waits(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)
    publish(bootstrap, topic, "forgotten", "long", "waits")
    admin.declare_queue(topic, "g", retry_ms=0)
    with Queue(bootstrap, topic, "g", lease_ms=12_000, in_flight_max=3) as queue:  # two thirds of it outlast a stall
        forgotten, long = queue.take(WAIT_MS), queue.take(WAIT_MS)
        assert forgotten is not None
        assert long is not None
        with Queue(bootstrap, topic, "g", in_flight_max=1) as other:
            again = None
            while again is None:
                long.extend().result(30)
                again = other.take(100)
            assert (again.value, again.deliveries, again.failures) == (b"forgotten", 2, 1)
            assert again.lease > forgotten.lease
            with pytest.raises(LeaseLost):
                forgotten.ack().result(30)
            with pytest.raises(LeaseLost):
                forgotten.release()
            again.ack().result(30)
        long.ack().result(30)
        waits = queue.take(WAIT_MS)
        assert waits is not None
        assert (waits.value, waits.deliveries) == (b"waits", 1)
        waits.ack()
    assert admin.describe_queue(topic, "g").accepted == 3


def test_rows_of_a_typed_topic_come_as_arrow_and_are_settled_by_a_mask(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic, partitions=2, schema="n long, s string")
    admin.declare_queue(topic, "g", dead_letter="park")
    with Producer(bootstrap) as producer:
        for number in range(20):
            producer.publish(topic, {"n": number, "s": str(number)}, partition=number % 2)
    seen: list[int] = []
    with Queue(bootstrap, topic, "g", idle_ms=WAIT_MS) as queue:
        batches = queue.batches(max_records=7)
        while len(seen) < 20:
            batch = next(batches)
            assert len(batch) <= 7
            assert batch.rows.schema.names == ["n", "s"]
            numbers = batch.rows.column("n").to_numpy()
            assert batch.offsets.tolist() == [number // 2 for number in numbers]
            assert set(numbers % 2) == {batch.partition}
            batch.reject(numbers % 5 == 0, "a multiple of five")
            batch.ack()
            seen += numbers.tolist()
        assert queue.take(200) is None
    assert sorted(seen) == list(range(20))
    found = admin.describe_queue(topic, "g")
    assert (found.accepted, found.parked + found.doomed) == (16, 4)


def test_records_are_settled_by_being_lent_if_that_is_asked_for(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    publish(bootstrap, topic, *"abcd", partition=0)
    publish(bootstrap, topic, *"efgh", partition=1)
    with Queue(bootstrap, topic, "g", ack="auto", in_flight_max=2) as queue:
        taken = []
        for _ in range(2):
            record = queue.take(WAIT_MS)
            assert record is not None
            with record:
                taken.append(record.value)
        with pytest.raises(InvalidRequest, match="auto"):
            record.fail("no")
        # Two more are lent meanwhile, as many as it may hold, and are gone.
        wait_until(lambda: admin.describe_queue(topic, "g").accepted == 4, "the member holds what it may")
        left = queue.peek(10)
        assert len(left) == 4
        assert sorted(r.value for r in queue.pop(10)) == sorted(r.value for r in left)
    assert admin.describe_queue(topic, "g").accepted == 8


def test_a_deleted_queue_ends_its_members_and_a_new_one_begins_anew(
    admin: Admin, bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "DECLARED_S", 0.0)
    admin.create_topic(topic)
    publish(bootstrap, topic, "a")
    queue = Queue(bootstrap, topic, "g")
    record = queue.take(WAIT_MS)
    assert record is not None
    record.ack().result(30)
    admin.delete_queue(topic, "g")
    with pytest.raises(UnknownQueue):
        queue.take(WAIT_MS)
    queue.close()
    with pytest.raises(UnknownQueue):
        admin.describe_queue(topic, "g")
    with Queue(bootstrap, topic, "g") as queue:
        record = queue.take(WAIT_MS)
        assert record is not None
        assert (record.value, record.deliveries) == (b"a", 1)


def test_a_dead_letter_topic_that_cannot_take_them_is_refused_when_it_is_set(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, schema="n long")
    admin.create_topic(f"{topic}-other", schema="m long")
    with pytest.raises(SchemaMismatch, match="lacks column n int64"):
        admin.declare_queue(topic, "g", dead_letter=f"{topic}-other")
    with pytest.raises((InvalidSetting, UnknownTopic), match=r"the brokers' own|there is no topic"):  # rights hide it
        admin.declare_queue(topic, "g", dead_letter="__lag")
    assert admin.list_queues(topic) == []
    admin.declare_queue(topic, "g", dead_letter=f"{topic}-not-yet")
    with pytest.raises(SchemaMismatch, match="lacks column n int64"):
        admin.alter_queue(topic, "g", dead_letter=f"{topic}-other")
    admin.create_topic(f"{topic}.dead")
    with pytest.raises(SchemaMismatch, match="lacks column n int64"):
        admin.alter_queue(topic, "g", dead_letter=None)
    assert admin.declare_queue(topic, "g").settings["dead_letter"] == f"{topic}-not-yet"
    admin.alter_queue(topic, "g", lease_ms="5s")


def test_urgent_records_are_lent_first(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    with Producer(bootstrap) as producer:
        priorities = [4, 0, 31, 9, 31]
        futures = [producer.publish(topic, b"%d" % n, priority=each) for n, each in enumerate(priorities)]
        assert sorted(future.result(20).offset for future in futures) == [0, 1, 2, 3, 4]
    with Queue(bootstrap, topic, "g", in_flight_max=1, idle_ms=WAIT_MS) as queue:
        found = []
        for record in queue:
            record.ack()
            found.append(record.value)
            if len(found) == 5:
                break
    assert found == [b"2", b"4", b"3", b"0", b"1"]
