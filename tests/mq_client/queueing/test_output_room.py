"""Where outputs go and how much one ack takes, with topics that nobody serves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mq_client.errors import BatchTooLarge, InvalidRequest, Overloaded, SchemaMismatch
from mq_client.queueing import outputs as module
from mq_client.queueing.leases import LeaseId
from mq_client.queueing.outputs import Outputs
from mq_protocol.manifest import StagedPart
from mq_protocol.partitioner import partition_for_key
from mq_protocol.work_keys import WorkPlace, query_id_of, run_of_lease
from tests.mq_client.cluster.administrating import say
from tests.mq_client.cluster.scripted import Clock, Scripted, topic_info

TYPED = pa.schema([("n", pa.int64()), ("name", pa.string())])
PLACE = WorkPlace("0" * 32, 4, "g")


class Stages:
    """In the place of a stager: what was added, by topic and partition."""

    def __init__(self, connection: Scripted) -> None:
        self.connection = connection
        self.opened: list[tuple[Any, ...]] = []
        self.added: list[tuple[str, int, int]] = []
        self.batches = 1

    def open_stage(self, key: tuple[str, str], batch_id: int, run: str) -> Any:
        self.opened.append((key, batch_id, run))
        topic = key[1]

        def finish(_: float) -> list[StagedPart]:
            return [StagedPart(topic, 0, (bytes(16),) * self.batches, 1, "id")]

        return SimpleNamespace(
            add=lambda name, partition, table, _: self.added.append((name, partition, table.num_rows)), finish=finish
        )


@pytest.fixture
def outputs() -> Outputs:
    connection = Scripted(Clock())
    topics = topic_info(1, 1, 1), topic_info(1, 1, name="typed", topic_id="y", schema=TYPED)
    say(connection, *topics)
    connection.learn(*topics)
    stager: Any = Stages(connection)
    return Outputs(stager, 1_000)


def staged(outputs: Outputs) -> list[tuple[str, int, int]]:
    stager: Any = outputs._stager
    outputs.stage(PLACE, LeaseId(3, 5, 1))
    added: list[tuple[str, int, int]] = stager.added
    return added


def test_records_go_to_the_partition_of_their_key_and_others_to_one_of_their_topic(outputs: Outputs) -> None:
    keys = ["a", "b", "c", "d", "e"]
    for key in keys:
        outputs.publish("t", b"x", key=key)
    for _ in range(5):
        outputs.publish("typed", {"n": 1, "name": None})
    outputs.publish("t", b"x", partition=2)
    outputs.publish_batch("typed", pa.table({"n": [1], "name": ["x"]}), partition=1)
    found = staged(outputs)
    wanted = [partition_for_key(key.encode(), 3) for key in keys] + [2]
    counted = {
        partition: sum(rows for name, at, rows in found if (name, at) == ("t", partition)) for partition in range(3)
    }
    assert counted == {partition: wanted.count(partition) for partition in range(3)}
    usual = [(at, rows) for name, at, rows in found if name == "typed"]
    assert sorted(rows for _, rows in usual) in ([1, 5], [1, 5])
    stager: Any = outputs._stager
    assert [key for key, _, _ in stager.opened] == [(query_id_of(PLACE), "t"), (query_id_of(PLACE), "typed")]
    assert {run for _, _, run in stager.opened} == {run_of_lease(3, 5, 1)}


def test_tables_are_split_by_their_key_column(outputs: Outputs) -> None:
    rows = pa.table({"n": range(20), "name": ["a", "b", None, "d"] * 5})
    outputs.publish_batch("typed", rows, key_column="name")
    assert sum(rows for _, _, rows in staged(outputs)) == 20
    assert {at for _, at, _ in staged(outputs)} == {0, 1}
    with pytest.raises(SchemaMismatch, match="did you mean 'name'"):
        outputs.publish_batch("typed", rows, key_column="nam")
    records = pa.table({"key": pa.array([b"a", b"b", b"c"]), "value": pa.array([b"1", b"2", b"3"])})
    plain = Outputs(outputs._stager, 1_000)
    stager: Any = outputs._stager
    stager.added.clear()
    plain.publish_batch("t", records)
    assert {at for _, at, _ in staged(plain)} == {partition_for_key(key, 3) for key in (b"a", b"b", b"c")}
    empty = Outputs(outputs._stager, 1_000)
    empty.publish_batch("t", records.slice(0, 0))
    assert not empty


def test_one_ack_takes_so_many_bytes_partitions_and_batches(outputs: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTPUT_PARTITIONS_MAX", 2)
    outputs.publish("t", b"x", partition=0)
    outputs.publish("t", b"x", partition=1)
    outputs.publish("t", b"x", partition=1)
    with pytest.raises(Overloaded, match="at most 2 partitions"):
        outputs.publish("t", b"x", partition=2)
    with pytest.raises(Overloaded, match="at most 2 partitions"):
        outputs.publish_batch("typed", pa.table({"n": [1], "name": ["x"]}), partition=1)
    used = outputs._bytes
    monkeypatch.setattr(module, "BYTES_MAX", 2 * used)
    outputs.publish("t", b"x", partition=0)
    outputs.publish("t", b"x", partition=0)
    monkeypatch.setattr(module, "BYTES_MAX", outputs._bytes + used // 3)
    outputs.publish("t", b"x", partition=0)
    with pytest.raises(Overloaded, match="MiB"):
        outputs.publish("t", b"x", partition=0)
    stager: Any = outputs._stager
    stager.batches = 5
    monkeypatch.setattr(module, "OUTPUT_BATCHES_MAX", 5)
    outputs.stage(PLACE, LeaseId(3, 5, 1))
    monkeypatch.setattr(module, "OUTPUT_BATCHES_MAX", 4)
    with pytest.raises(BatchTooLarge, match="at most 4 batches"):
        outputs.stage(PLACE, LeaseId(3, 5, 1))


def test_a_row_of_a_typed_topic_is_a_dict_and_has_no_headers(outputs: Outputs) -> None:
    for options in ({"headers": {"a": b"b"}}, {"timestamp": 5}):
        with pytest.raises(InvalidRequest, match="make them columns"):
            outputs.publish("typed", {"n": 1, "name": "x"}, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="give a dict of its columns"):
        outputs.publish("typed", b"x")
    assert not outputs
    outputs.note_given()
    for use in (
        lambda: outputs.publish("t", b"x"),
        lambda: outputs.stage(PLACE, LeaseId(1, 1, 1)),
        outputs.check_usable,
    ):
        with pytest.raises(InvalidRequest, match="given to an ack before"):
            use()
