"""`tritonmq storage`: what is told of a stopped broker's directory, the exit status, and that nothing changes."""

from __future__ import annotations

import asyncio
import io
import json
import random
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from mq_broker.core.entries import Append, Discard, Entry, EpochStart, Operation, Publish, Stage, TransactionKey, Trim
from mq_broker.storage.codec.frame import Place, encode
from mq_broker.storage.files import OsFiles
from mq_broker.storage.interface import Frame
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.opening.directory import DataDirectory
from mq_cli.main import MISUSED, REFUSED, run
from mq_client import Admin, Producer
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch
from mq_protocol.sql.ddl import parse_schema
from tests.mq_broker.broker.cluster import standalone
from tests.mq_broker.storage.bed import Heard, uuid_of
from tests.mq_broker.storage.inspecting.logs import everything_under, flip, frame_positions

PLACE = Place("a" * 32, 0)
TYPED = Place("b" * 32, 2)
KEY = TransactionKey("query-7", "")
COLUMNS = "a long, m map<string,int>"


def messages(*values: str) -> pa.RecordBatch:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"key": None, "value": value.encode(), "headers": None, "timestamp": at} for value in values]
    return pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)


def entry(
    index: int, operation: Operation, batch: pa.RecordBatch | None = None, uuid: int = 0, place: Place = PLACE
) -> Frame:
    payload = encode_batch(batch).to_pybytes() if batch is not None else b""
    rows = 0 if batch is None else batch.num_rows
    made = Entry(index, 1, 1_000_000 + index, operation, uuid_of(uuid or index), rows, len(payload), len(payload))
    return encode(place, made, (payload,) if payload else ())


def stopped_broker(path: Path) -> None:
    """A topic of messages whose offsets 0 to 1 are trimmed, whose 3 to 4 were staged first, and a typed one."""
    typed = parse_schema(COLUMNS)
    older = pa.RecordBatch.from_pylist([{"a": 1}], parse_schema("a long"))
    newer = pa.RecordBatch.from_pylist([{"a": 2, "m": [("x", 7)]}], typed)
    logs = [
        (
            PLACE,
            "talk",
            [
                entry(1, EpochStart(4)),
                entry(2, Append(), messages("one", "two")),
                entry(3, Stage(KEY, 0, "run"), messages("four", "five"), uuid=70),
                entry(4, Stage(KEY, 0, "run"), messages("lost"), uuid=71),
                entry(5, Stage(KEY, 1, "run"), messages("waits"), uuid=72),
                entry(6, Append(), messages("three")),
                entry(7, Publish(KEY, 0, (uuid_of(70),))),
                entry(8, Discard(KEY, (uuid_of(71),))),
                entry(9, Trim(2)),
                entry(10, Append(), messages("six\x1b[31m")),
            ],
        ),
        (
            TYPED,
            "typed",
            [
                entry(1, EpochStart(4), place=TYPED),
                entry(2, Append(), older, place=TYPED),
                entry(3, Append(), newer, place=TYPED),
            ],
        ),
    ]

    async def scene() -> None:
        directory = DataDirectory.open(path, 4)
        directory.join_cluster("c1")
        writer = Writer(OsFiles())
        writer.start()
        for place, topic, frames in logs:
            heard = Heard()
            journal = directory.open_journal(place, "fsync", 0, heard, writer, topic=topic).journal
            journal.append(frames)
            await heard.until_flushed(len(frames))
            await journal.close()
        await writer.stop()
        directory.close()

    asyncio.run(scene())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    stopped_broker(path)
    return path


def segment(data: Path, place: Place = PLACE) -> Path:
    return data / "partitions" / f"{place.topic_id}-{place.partition}" / "00000000000000000001.log"


def values(text: str) -> list[tuple[int, object]]:
    return [(row["offset"], row["value"]) for row in map(json.loads, text.splitlines())]


def test_list_names_the_partitions(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["storage", "list", "--data", str(data), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["broker"], listed["cluster_id"]) == (4, "c1")
    assert [(each["topic"], each["partition"], each["flushed"], each["clean"]) for each in listed["partitions"]] == [
        ("talk", 0, 10, True),
        ("typed", 2, 3, True),
    ]
    assert run(["storage", "list", "--data", str(data)]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(f"talk\t0\t{PLACE.topic_id}\t1\t")


def test_show_tells_offsets_and_what_is_staged(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["storage", "show", "talk", "0", "--data", str(data), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["offsets"] == {"start": 2, "end": 6}
    assert shown["entries"] == {"first": 1, "last": 10, "count": 10}
    assert [(each["uuid"], each["query"], each["batch_id"], each["entry"]) for each in shown["staged"]] == [
        (uuid_of(72).hex(), "query-7", 1, 5)
    ]
    assert shown["kinds"] == {"EpochStart": 1, "Append": 3, "Stage": 3, "Publish": 1, "Discard": 1, "Trim": 1}
    assert run(["storage", "show", "talk", "0", "--data", str(data)]) == 0
    assert "offsets 2 to 6" in capsys.readouterr().out


def test_entries_are_listed_with_their_bytes_and_offsets(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["storage", "entries", "talk", "0", "--data", str(data), "--json", "--from", "6", "--max", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)
    positions = frame_positions(segment(data))
    assert [(row["index"], row["kind"], row["position"], row["offsets"]) for row in rows] == [
        (6, "Append", positions[5], [[2, 3]]),
        (7, "Publish", positions[6], [[3, 5]]),
    ]


def test_export_gives_records_in_order_of_offset(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["storage", "export", "talk", "0", "--data", str(data), "--schema", "records"]
    assert run(words) == 0
    assert values(capsys.readouterr().out) == [(2, "three"), (3, "four"), (4, "five"), (5, "six\x1b[31m")]
    assert run([*words, "--from", "4", "--to", "5"]) == 0
    assert values(capsys.readouterr().out) == [(4, "five")]
    assert run([*words, "--from", "9"]) == 0
    assert capsys.readouterr().out == ""


def test_export_as_arrow_reads_rows_of_a_former_schema_too(data: Path, tmp_path: Path) -> None:
    words = ["storage", "export", "typed", "2", "--data", str(data), "--schema", COLUMNS, "--format", "arrow"]
    assert run([*words, "--output", str(tmp_path / "out.arrow")]) == 0
    table = pa.ipc.open_stream(io.BytesIO((tmp_path / "out.arrow").read_bytes())).read_all()
    assert table.select(["a", "m", "_offset"]).to_pylist() == [
        {"a": 1, "m": None, "_offset": 0},
        {"a": 2, "m": [("x", 7)], "_offset": 1},
    ]
    assert run([*words, "--output", str(tmp_path / "out.arrow")]) == MISUSED  # it is there
    assert run([*words, "--output", str(data / "partitions" / "out.arrow")]) == MISUSED
    assert run([*words, "--output", str(data / "out.arrow")]) == MISUSED


def test_export_of_typed_rows_as_json_has_maps_as_objects(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["storage", "export", "typed", "2", "--data", str(data), "--schema", COLUMNS]) == 0
    said = capsys.readouterr()
    assert values(said.out) == [(0, {"a": 1, "m": None}), (1, {"a": 2, "m": {"x": 7}})]
    assert "so --schema is believed" in said.err, "journals do not know their columns: double would be shown for long"


def test_export_refuses_a_schema_that_is_not_the_one_that_the_directory_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "alone"

    async def scene() -> None:
        async with standalone(path) as broker:
            await asyncio.to_thread(publish_one, broker.address)

    asyncio.run(scene())
    words = ["storage", "export", "flights", "0", "--data", str(next(path.rglob("coordination.json")).parent)]
    for schema, status in ((None, 0), ("n int, f float", 0), ("n float, f int", MISUSED), ("records", MISUSED)):
        assert run([*words, *(["--schema", schema] if schema else [])]) == status
        said = capsys.readouterr()
        assert values(said.out) == ([(0, {"n": 1, "f": 2.0})] if status == 0 else [])
        assert ("n int32, f float" in said.err) == (status != 0)
        assert "is believed" not in said.err
    (next(path.rglob("coordination.json"))).write_text("{")
    assert run([*words, "--schema", "n int, f float"]) == 0
    assert "is believed" in capsys.readouterr().err


def publish_one(bootstrap: str) -> None:
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topic("flights", schema="n int, f float")
        producer.publish("flights", {"n": 1, "f": 2.0}).result(20)


@pytest.mark.parametrize("schema", [None, "a string, b string", "a lnog"])
def test_export_with_no_schema_or_another_one_is_misuse(
    data: Path, schema: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["storage", "export", "typed", "2", "--data", str(data), *(["--schema", schema] if schema else [])]
    assert run(words) == MISUSED
    said = capsys.readouterr()
    assert said.out == ""
    assert "--schema" in said.err


def test_a_document_of_topics_that_is_no_file_is_not_read(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe would be waited for, and /dev/zero has no end."""
    (data / "coordination.json").symlink_to("/dev/null")
    assert run(["storage", "export", "typed", "2", "--data", str(data)]) == REFUSED
    assert "coordination.json is no file" in capsys.readouterr().err


def test_verify_of_a_whole_directory_says_so_and_what_it_does_not_cover(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["storage", "verify", "--data", str(data)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "2 partitions, 13 good entries" in said.err
    assert "not covered by a checksum: log.json" in said.err


def test_damage_is_named_by_file_byte_and_entry_and_export_gives_what_is_good(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment(data)
    positions = frame_positions(path)
    flip(path, positions[6] + 61, random.Random(1))
    before = everything_under(data)
    assert run(["storage", "verify", "--data", str(data)]) == REFUSED
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split("\t")[:6] == ["damaged", "talk", "0", str(path), str(positions[6]), "7"]
    assert f"partition 0 of topic id {PLACE.topic_id}" in said.out
    assert f"talk 0 {path.name}: at its next start" in said.err
    assert "Place(" not in said.out + said.err
    assert "at its next start the broker keeps the entries before" in said.err
    assert run(["storage", "verify", "--data", str(data), "--json", "--topic", "talk", "--partition", "0"]) == REFUSED
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["kind"], finding["position"], finding["end"]) == ("damaged", positions[6], positions[7])
    assert (finding["topic"], finding["partition"]) == ("talk", 0)
    assert run(["storage", "verify", "--data", str(data), "--topic", "typed"]) == 0
    capsys.readouterr()
    # The trim lies behind the damage, and so is not known of.
    assert run(["storage", "export", "talk", "0", "--data", str(data), "--schema", "records"]) == REFUSED
    said = capsys.readouterr()
    assert values(said.out) == [(0, "one"), (1, "two"), (2, "three")]
    assert f"byte {positions[6]} of segment 1" in said.err
    assert run(["storage", "entries", "talk", "0", "--data", str(data)]) == REFUSED
    assert run(["storage", "show", "talk", "0", "--data", str(data)]) == 0
    assert "entry 7 cannot be read" in capsys.readouterr().err
    assert everything_under(data) == before


def test_looking_changes_no_byte_and_no_time(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything_under(data)
    for words in ("list", "show talk 0", "entries talk 0", "verify", "export talk 0 --schema records"):
        assert run(["storage", *words.split(), "--data", str(data)]) == 0
    capsys.readouterr()
    assert everything_under(data) == before


def test_a_directory_in_which_a_broker_runs_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = DataDirectory.open(data, 4)
    for words in ("list", "show talk 0", "entries talk 0", "verify", "export talk 0 --schema records"):
        assert run(["storage", *words.split(), "--data", str(data)]) == REFUSED
        assert "stop that broker first" in capsys.readouterr().err
    running.close()
