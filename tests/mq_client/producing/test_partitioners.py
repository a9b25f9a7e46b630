"""Who chooses a record's partition: each choice by name, callables, and those that an installed package brings."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from mq_client import Admin, InvalidSetting, Producer, UnknownPartition
from mq_client.producing.partitioners import choice_of
from mq_protocol.partitioner import partition_for_key


def spread(
    bootstrap: str, topic: str, partitioner: str | Callable[..., int], count: int, key: bytes | None = None
) -> Counter[int]:
    """How many of so many quick records each partition was given."""
    with Producer(bootstrap, partitioner=partitioner, linger_ms=60_000) as producer:
        futures = [producer.publish(topic, b"x", key=key) for _ in range(count)]
        producer.flush()
        return Counter(future.result(30).partition for future in futures)


def install(folder: Path, group: str, name: str, code: str) -> None:
    """A package that offers `name`, as pip would leave it."""
    (folder / f"offered_{name}.py").write_text(code)
    about = folder / "offered-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = offered_{name}:offered\n")


def test_quick_records_without_a_key_do_not_all_go_to_one_partition(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    counts = spread(bootstrap, topic, "key", 100)
    assert sorted(counts.values()) == [36, 64]


def test_keys_decide_by_their_hash(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=5)
    assert spread(bootstrap, topic, "key", 50, b"k") == {partition_for_key(b"k", 5): 50}


@pytest.mark.parametrize("key", [None, b"k"])
def test_round_robin_random_and_sticky_look_at_no_key(
    bootstrap: str, admin: Admin, topic: str, key: bytes | None
) -> None:
    admin.create_topic(topic, partitions=4)
    assert sorted(spread(bootstrap, topic, "round_robin", 100, key).values()) == [25, 25, 25, 25]
    counts = spread(bootstrap, topic, "random", 400, key)
    assert sum(counts.values()) == 400
    assert min(counts[partition] for partition in range(4)) > 40
    assert len(spread(bootstrap, topic, "sticky", 100, key)) == 1


def test_round_robin_has_a_turn_of_its_own_for_each_topic() -> None:
    pick = choice_of("round_robin").pick
    assert pick is not None
    assert [(pick("a", None, 2), pick("b", None, 2)) for _ in range(4)] == [(0, 0), (1, 1), (0, 0), (1, 1)]


def test_a_callable_decides_of_records_and_tables(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    asked = []

    def by_last_digit(name: str, key: bytes | None, partitions: int) -> int:
        asked.append((name, key, partitions))
        return 0 if key is None else key[-1] % 3

    with Producer(bootstrap, partitioner=by_last_digit) as producer:
        assert producer.publish(topic, b"x", key="5").result(30).partition == ord("5") % 3
        assert producer.publish(topic, b"x").result(30).partition == 0
        assert producer.publish(topic, b"x", key="5", partition=1).result(30).partition == 1
        table = producer.publish_batch(
            topic, pa.table({"key": [b"1", b"2", b"1"], "value": [b"a", b"b", b"c"]})
        ).result(30)
    assert {place.partition: place.record_count for place in table.places} == {ord("1") % 3: 2, ord("2") % 3: 1}
    assert asked[:2] == [(topic, b"5", 3), (topic, None, 3)]


@pytest.mark.parametrize("answer", [2, -1, None, 0.0, "0"])
def test_an_answer_that_is_no_partition_is_an_error(bootstrap: str, admin: Admin, topic: str, answer: object) -> None:
    admin.create_topic(topic, partitions=2)
    with Producer(bootstrap, partitioner=lambda topic, key, partitions: answer) as producer:  # type: ignore[arg-type,return-value]
        for publish in (
            lambda: producer.publish(topic, b"x"),
            lambda: producer.publish_batch(topic, pa.table({"value": [b"x"]})),
        ):
            with pytest.raises(UnknownPartition, match=r"the partitioner answered .* it has 0 to 1"):
                publish()


@pytest.mark.parametrize("partitioner", ["key", "sticky", "round_robin", "random"])
def test_a_record_sent_again_by_its_uuid_meets_its_first_copy(
    bootstrap: str, admin: Admin, topic: str, partitioner: str
) -> None:
    admin.create_topic(topic, partitions=7)
    names = [uuid.uuid4() for _ in range(20)]
    for again in (False, True):
        with Producer(bootstrap, partitioner=partitioner) as producer:
            placed = [producer.publish(topic, b"x", key="k", uuid=name) for name in names]
            assert [place.result(30).duplicate for place in placed] == [again] * 20


def test_an_installed_package_brings_a_partitioner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path,
        "tritonmq.partitioners",
        "to_the_last",
        "def offered(topic, key, partitions):\n    return partitions - 1\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    pick = choice_of("to_the_last").pick
    assert pick is not None
    assert pick("t", b"k", 9) == 8
    with pytest.raises(InvalidSetting, match="partitioner='to_the_lost' is not known: did you mean 'to_the_last'"):
        choice_of("to_the_lost")


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "tritonmq.partitioners", "broken", "import no_such_thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidSetting, match=r"'broken' of tritonmq.partitioners cannot be imported .*no_such_thing"):
        choice_of("broken")


def test_a_plug_in_that_is_no_callable_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "tritonmq.partitioners", "number", "offered = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidSetting, match=r"partitioner='number' is int in the package that has it, not a callable"):
        choice_of("number")
