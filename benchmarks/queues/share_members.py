"""Members of Kafka's share groups, run by the Python that has Kafka's client. Nothing of ours in it.

It is asked and answers as `their_members.py` is. `names` are topics of one partition, so that all peers have as many.
The client is confluent-kafka's `ShareConsumer`, which is written in C and is a preview.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks.bench.measure import Schedule

IDLE_S: Final = 2.5
POLL_S: Final = 0.2
TIMEOUT_S: Final = 120.0
LEAD_S: Final = 1.0
RECORD_BYTES: Final = 100
REPLICAS: Final = 3
MIN_INSYNC: Final = 2
JOIN_S: Final = 60.0
"""Until a member of a new group has partitions: the coordinator makes the group's state first."""


def group_of(names: list[str]) -> str:
    return f"workers-of-{names[0]}"


def make(bootstrap: str, names: list[str]) -> None:
    from confluent_kafka.admin import (  # type: ignore[import-not-found]
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewTopic,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"min.insync.replicas": str(MIN_INSYNC)}
    made = admin.create_topics([NewTopic(name, 1, REPLICAS, config=config) for name in names])
    for each in made.values():
        each.result(TIMEOUT_S)
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group_of(names), incremental_configs=[earliest])
    for each in admin.incremental_alter_configs([resource]).values():
        each.result(TIMEOUT_S)


def send(bootstrap: str, names: list[str], values: Iterator[tuple[float, bytes]]) -> None:
    """Each at its time, in seconds since 1970. Ends when all are acknowledged by every replica in sync."""
    from confluent_kafka import Producer  # type: ignore[import-not-found]

    failed: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for at, (due_s, value) in enumerate(values):
        while (early := due_s - time.time()) > 0:
            producer.poll(early)
        while True:
            try:
                producer.produce(
                    names[at % len(names)],
                    value.ljust(RECORD_BYTES, b"\0"),
                    on_delivery=lambda error, _record: failed.append(str(error)) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(TIMEOUT_S) or failed:
        raise RuntimeError(f"not all records were acknowledged: {failed[:3]}")


class Member:
    """One share consumer, used by one thread. `take` is told each value."""

    def __init__(self, bootstrap: str, names: list[str], *, most: int, explicit: bool) -> None:
        from confluent_kafka import ShareConsumer

        self.explicit = explicit
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group_of(names),
                "max.poll.records": most,
                "share.acknowledgement.mode": "explicit" if explicit else "implicit",
                "log_level": 3,
            }
        )
        self._consumer.subscribe(names)

    def poll(self, wait_s: float = POLL_S) -> list[Any]:
        found = list(self._consumer.poll(wait_s))
        for message in found:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
        return found

    def accept(self, message: Any) -> None:
        self._consumer.acknowledge(message)

    def send_accepted(self) -> None:
        """Without waiting for the answer."""
        self._consumer.commit_async()

    def commit(self) -> None:
        for where, error in self._consumer.commit_sync(TIMEOUT_S).items():
            if error is not None:
                raise RuntimeError(f"{where}: {error}")

    def close(self) -> None:
        self._consumer.close()


class Came:
    """What a process received."""

    def __init__(self, stamped: bool) -> None:
        self._stamped = stamped
        self.ids: list[int] = []
        self.late_ms: list[float] = []
        self.first = self.last = time.monotonic()

    def note(self, value: bytes) -> None:
        self.last = time.monotonic()
        if not self.ids:
            self.first = self.last
        self.ids.append(int.from_bytes(value[:8], "little"))
        if self._stamped:
            self.late_ms.append((time.time_ns() - int.from_bytes(value[8:16], "little")) / 1e6)


def many(member: Member, came: Came, begun: Callable[[], bool]) -> None:
    """Until nothing comes any more. What is polled together is accepted together, by the next poll."""
    while begun() or time.monotonic() < came.last + IDLE_S:
        for message in member.poll():
            came.note(message.value())
            if member.explicit:
                member.accept(message)
        if member.explicit:
            member.send_accepted()
    member.commit()


def one_at_a_time(member: Member, came: Came, begun: Callable[[], bool]) -> None:
    """Each record is committed before the next is looked at. The client hands out whole batches of the log, whatever
    `max.poll.records` says, so a member may hold more than one."""
    while begun() or time.monotonic() < came.last + IDLE_S:
        for message in member.poll():
            member.accept(message)
            member.commit()
            came.note(message.value())


def warm_up(bootstrap: str, names: list[str], member: Member) -> None:
    """Until a record of each topic has come."""
    send(bootstrap, names, ((0.0, b"warm") for _ in names))
    missing, given_up = set(names), time.monotonic() + JOIN_S
    while missing:
        if time.monotonic() > given_up:
            raise TimeoutError(f"no record of {', '.join(sorted(missing))} came within {JOIN_S:g} s")
        for message in member.poll():
            missing.discard(message.topic())
            member.accept(message)
        member.commit()


def work(bootstrap: str, names: list[str], prefetch: int, members: int, stamped: bool) -> None:
    """Say "ready", begin after another line, and tell what came. A member joins its group with its first poll, which
    takes seconds: so the time runs from the first record, and what is stamped is published after a warm-up."""
    explicit = members > 1 or stamped or prefetch <= 1_000
    joined = [Member(bootstrap, names, most=prefetch, explicit=explicit) for _ in range(members)]
    if stamped:
        warm_up(bootstrap, names, joined[0])
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    came = Came(stamped)
    given_up = time.monotonic() + JOIN_S
    errors: list[Exception] = []

    def begun() -> bool:
        return not came.ids and time.monotonic() < given_up

    def run(member: Member) -> None:
        try:
            (one_at_a_time if members > 1 else many)(member, came, begun)
            member.close()
        except Exception as error:  # noqa: BLE001 - it is raised below, in the thread that is waited for
            errors.append(error)

    threads = [threading.Thread(target=run, args=(member,)) for member in joined]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    print(json.dumps({"came": came.ids, "first": came.first, "last": came.last, "late_ms": came.late_ms}), flush=True)


def left(bootstrap: str, names: list[str]) -> int:
    """How many records another member of the group still gets. What was lent and not accepted comes within its lock's
    time, which is longer than this waits: `work` therefore commits all that it was given before it ends."""
    member, came = Member(bootstrap, names, most=500, explicit=False), Came(False)
    many(member, came, lambda: False)
    member.close()
    return len(came.ids)


def answer(asked: dict[str, Any]) -> None:
    do, bootstrap, names = asked.pop("do"), ",".join(asked.pop("addresses")), asked.pop("names")
    asked.pop("peer")
    if do == "work":
        work(bootstrap, names, **asked)
        return
    found: int | None = None
    if do == "fill":
        make(bootstrap, names)
        send(bootstrap, names, ((0.0, ident.to_bytes(8, "little")) for ident in range(asked["count"])))
    elif do == "publish":
        schedule = Schedule(time.time_ns() + round(LEAD_S * 1e9), asked["per_second"], asked["count"])
        stamps = ((ident, schedule.due_ns(ident)) for ident in range(asked["count"]))
        values = ((due / 1e9, ident.to_bytes(8, "little") + due.to_bytes(8, "little")) for ident, due in stamps)
        send(bootstrap, names, values)
    else:
        found = left(bootstrap, names)
    print(json.dumps(found), flush=True)


def main() -> None:
    """Until standard input ends."""
    while line := sys.stdin.readline():
        answer(json.loads(line))


if __name__ == "__main__":
    main()
