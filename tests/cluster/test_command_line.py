"""The command line against a real broker: what goes in by `produce` comes out by `consume`, and every refusal says
why."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from mq_dev.local_cluster import LocalCluster
from tests.cluster.harness import wait_until
from tests.mq_cli.processes import Command, Outcome, tritonmq

pytestmark = pytest.mark.cluster

TEXT = "plain\nGrüße aus Köln\n\n雪 ☃ 🎿\n  blanks kept  \n\ttab\nno end of line at the end"


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("command-line")) as cluster:
        yield cluster.bootstrap


@pytest.fixture
def topic(bootstrap: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic of one partition, its own for each test; the bootstrap address is in the environment."""
    monkeypatch.setenv("TRITONMQ_BOOTSTRAP", bootstrap)
    name = request.node.name.removeprefix("test_")[:100]
    assert tritonmq("topic", "create", name).returncode == 0
    return name


def read_all(topic: str, *options: str) -> bytes:
    result = tritonmq("consume", topic, "--from", "earliest", "--exit-at-end", *options)
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout


def test_topics_are_made_together_and_what_became_of_each_is_told(topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    made = tritonmq("topic", "create", *names, "--partitions", "2", "--set", "durability=os")
    assert (made.returncode, made.stderr) == (0, b"created 3 topics\n")
    again = tritonmq("topic", "create", *names, f"{topic}-new", "--json")
    assert again.returncode == 1
    rows = json.loads(again.stdout)
    assert [(row["name"], row["error"] is None) for row in rows] == [
        *((name, False) for name in names),
        (f"{topic}-new", True),
    ]
    kept = tritonmq("topic", "create", *names, "--if-not-exists")
    assert (kept.returncode, kept.stderr) == (0, b"created 0 topics, 3 were there already\n")
    refused = tritonmq("topic", "create", names[0], f"{topic}-more")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[0] == b"created 1 topic"
    assert b"exists already" in refused.stderr.splitlines()[1]


def test_lines_come_out_as_they_went_in(topic: str) -> None:
    result = tritonmq("produce", topic, given=TEXT.encode())
    assert (result.returncode, result.stdout) == (0, b"")
    assert b"7 messages acknowledged" in result.stderr
    assert read_all(topic) == TEXT.encode() + b"\n"
    pushed = tritonmq("consume", topic, "--from", "earliest", "--max", "7")
    assert (pushed.returncode, pushed.stdout) == (0, TEXT.encode() + b"\n")


def test_many_lines_keep_their_order_and_none_is_lost(topic: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(50_000))
    assert tritonmq("produce", topic, "-q", "--gzip", given=gzip.compress(lines)).returncode == 0
    assert read_all(topic) == lines
    pushed = tritonmq("consume", topic, "--from", "earliest", "--max", "50000")
    assert (pushed.returncode, pushed.stdout) == (0, lines)


@pytest.mark.parametrize("data", [b"plain text\n", gzip.compress(b"x" * 1_000)[:-10]], ids=["plain", "cut off"])
def test_input_that_is_not_or_not_all_of_gzip_is_refused(topic: str, data: bytes) -> None:
    refused = tritonmq("produce", topic, "--gzip", given=data)
    assert refused.returncode == 1
    assert b"stopped at line 1: the input is not, or not all, of gzip" in refused.stderr


def test_keys_come_before_their_separator(topic: str) -> None:
    assert tritonmq("produce", topic, "-K", "::", given=b"a::1\nno key\nb::2::3\n").returncode == 0
    assert read_all(topic, "-f", "%k|%s|%o\\n") == b"a|1|0\n|no key|1\nb|2::3|2\n"


@pytest.mark.parametrize(
    "bad",
    [b"x" * 2_000_000, b"x" * (65 << 20), b'{"id": "1"}', b'{"id": 1'],
    ids=["too long", "longer than any", "of another type", "cut off"],
)
def test_what_cannot_be_sent_is_named_by_its_line_and_what_came_before_is_there(topic: str, bad: bytes) -> None:
    good = b'{"id": 1}'
    if bad.startswith(b"{"):
        topic = f"{topic}.typed"
        assert tritonmq("topic", "create", topic, "--schema", "id long").returncode == 0
    result = tritonmq("produce", topic, given=b"\n".join([good, good, bad, good]))
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"2 messages acknowledged (lines 1 to 2), stopped at line 3: " in result.stderr
    assert len(read_all(topic).splitlines()) == 2


def test_ctrl_c_says_what_was_acknowledged_by_then(topic: str) -> None:
    with Command("produce", topic, stdin=subprocess.PIPE) as writer:
        assert writer.process.stdin is not None
        writer.process.stdin.write(b"1\n2\n")
        writer.process.stdin.flush()
        deadline = time.monotonic() + 60
        while read_all(topic) != b"1\n2\n":  # what comes is sent while the input goes on
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert writer.end(signal.SIGINT) == 130
        assert writer.remark_with("acknowledged") == "2 messages acknowledged (lines 1 to 2)"


def test_rows_of_typed_topics_are_json_and_come_out_as_they_went_in(topic: str) -> None:
    name = f"{topic}.typed"
    schema = (
        "i int, d decimal(5,2), t timestamp, x date, b binary, a array<int>, s struct<p:string>, m map<string,long>"
    )
    assert tritonmq("topic", "create", name, "--schema", schema).returncode == 0
    row = {"i": 1, "d": "1.10", "t": "2026-01-31T08:30:00Z", "x": "2026-01-31", "b": {"base64": "AP8="}, "a": [1, None]}
    rows = [row | {"s": {"p": "q"}, "m": {"k": 2}}, dict.fromkeys([*row, "s", "m"])]
    assert tritonmq("produce", name, given="\n".join(map(json.dumps, rows)).encode()).returncode == 0
    written = read_all(name)
    assert [json.loads(line) for line in written.splitlines()] == rows
    assert tritonmq("produce", name, given=written).returncode == 0, "what consume writes can be produced again"
    pushed = tritonmq("consume", name, "--from", "earliest", "--max", "2")
    assert [json.loads(line) for line in pushed.stdout.splitlines()] == rows
    wrong = tritonmq("produce", name, given=b'{"i": 1, "c": 2}\n')
    assert wrong.returncode == 1
    assert b"nothing acknowledged, stopped at line 1" in wrong.stderr


def test_csv_goes_into_typed_topics_and_topics_of_records(topic: str) -> None:
    name = f"{topic}.typed"
    assert tritonmq("topic", "create", name, "--schema", "id long, name string").returncode == 0
    given = b'\xef\xbb\xbfname,id\n"a, ""b""",1\n,2\n"two\nlines",3\nx,four\ny,5\n'  # spreadsheets begin so
    result = tritonmq("produce", name, "--csv", given=given)
    assert result.returncode == 1
    assert (
        b"3 messages acknowledged (lines 1 to 5), stopped at line 6: column 'id': \"four\" is no integer"
        in result.stderr
    )
    rows = [json.loads(line) for line in read_all(name).splitlines()]
    assert rows == [{"id": 1, "name": 'a, "b"'}, {"id": 2, "name": None}, {"id": 3, "name": "two\nlines"}]
    assert tritonmq("produce", topic, "--csv", "--columns", "key,value", given=b"k,v\n").returncode == 0
    assert read_all(topic, "-f", "%k=%s\\n") == b"k=v\n"


def test_messages_get_the_headers_the_time_and_the_compression_that_are_asked_for(topic: str) -> None:
    options = ["-H", "a=b", "-H", "c=d=e", "--timestamp", "2026-01-31T08:30:00Z", "--compression", "zstd"]
    assert tritonmq("produce", topic, *options, given=b"x\n").returncode == 0
    message = json.loads(read_all(topic, "--json"))
    assert message["headers"] == [{"key": "a", "value": "b"}, {"key": "c", "value": "d=e"}]
    assert message["timestamp"] == "2026-01-31T08:30:00Z"


def test_a_reader_that_waits_gets_what_comes_later_and_ctrl_c_ends_it(topic: str) -> None:
    assert tritonmq("produce", topic, given=b"before\n").returncode == 0
    with Command("consume", topic, "--from", "earliest") as reader:
        assert reader.line() == "before"
        assert tritonmq("produce", topic, given=b"later\n").returncode == 0
        assert reader.line() == "later"
        assert reader.end(signal.SIGINT) == 0
        assert reader.rest() == []
        assert reader.err.get(timeout=30) is None


def test_reading_ends_after_silence_if_asked_to(topic: str) -> None:
    assert tritonmq("produce", topic, given=b"one\ntwo\n").returncode == 0
    read = ("consume", topic, "--from", "earliest", "--timeout", "3")
    everything = Outcome(0, b"one\ntwo\n", b"")
    wait_until(lambda: tritonmq(*read) == everything, "it ends, and not in a silence of ours before the first record")


@pytest.mark.parametrize("pushed", [False, True])
def test_reading_begins_at_an_offset_or_a_time(topic: str, pushed: bool) -> None:
    def read(begin: str, count: int) -> Outcome:
        return tritonmq("consume", topic, "--from", begin, *(["--max", str(count)] if pushed else ["--exit-at-end"]))

    assert tritonmq("produce", topic, given=b"0\n1\n2\n").returncode == 0
    time.sleep(0.01)  # the next message must be younger than the time below
    between = time.time()
    time.sleep(0.01)
    assert tritonmq("produce", topic, given=b"3\n4\n").returncode == 0
    assert read("2", 3).stdout == b"2\n3\n4\n"
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between)) + f"{between % 1:.6f}"[1:] + "Z"
    assert read(moment, 2).stdout == b"3\n4\n"
    beyond = read("6", 1)
    assert (beyond.returncode, beyond.stdout) == (1, b"")
    assert b"ends at offset 5: it has no offset 6 to begin at; --from latest waits" in beyond.stderr


def test_a_group_goes_on_where_it_left_off_and_its_lag_is_listed(topic: str) -> None:
    group = f"group-of-{topic}"
    assert tritonmq("produce", topic, given=b"1\n2\n3\n4\n5\n").returncode == 0
    first = tritonmq("consume", topic, "--from", "earliest", "--group", group, "--max", "2")
    assert (first.returncode, first.stdout) == (0, b"1\n2\n")
    (cursor,) = json.loads(tritonmq("group", "describe", group, "--json").stdout)["cursors"]
    assert (cursor["offset"], cursor["log_end_offset"], cursor["lag"]) == (2, 5, 3)

    def listed_as() -> list[list[str]]:
        lines = tritonmq("group", "list").stdout.decode().splitlines()
        return [line.split()[1:6] for line in lines if line.startswith(group)]

    wait_until(lambda: listed_as() == [["consumer", topic, "1", "0", "3"]], "the broker hears that its member is gone")
    (behind,) = [each for each in json.loads(tritonmq("group", "list", "--json").stdout) if each["name"] == group]
    assert (behind["lag"], behind["lag_bytes"], behind["lag_us"]) == (3, cursor["lag_bytes"], behind["lag_us"])
    assert behind["lag_bytes"] > 0
    assert behind["lag_us"] > 0
    second = tritonmq("consume", topic, "--from", "earliest", "--group", group, "--max", "3")
    assert second.stdout == b"3\n4\n5\n"
    listed = json.loads(tritonmq("group", "list", "--json").stdout)
    (summary,) = [each for each in listed if each["name"] == group]
    assert (summary["topics"], summary["reads_as"], summary["lag"], summary["lag_bytes"], summary["lag_us"]) == (
        [topic],
        ["consumer"],
        0,
        0,
        0,
    )
    wrong = tritonmq("group", "describe", group[:-1])
    assert wrong.returncode == 1
    assert group.encode() in wrong.stderr


def test_a_group_is_moved_shown_first_and_not_while_it_is_read(topic: str) -> None:
    group = f"group-of-{topic}"
    assert tritonmq("produce", topic, given=b"1\n2\n3\n4\n5\n").returncode == 0
    with Command("consume", topic, "--from", "earliest", "--group", group) as reader:
        assert [reader.line() for _ in range(5)] == ["1", "2", "3", "4", "5"]
        refused = tritonmq("group", "reset", group, topic, "--to", "earliest")
        assert refused.returncode == 1
        assert b"stop them first" in refused.stderr
        assert tritonmq("group", "reset", group, topic, "--to", "latest", "--force").returncode == 0
        # The group is told of once its first member has a place
        wait_until(lambda: tritonmq("group", "describe", group).returncode == 0, "the group has a cursor")
        described = tritonmq("group", "describe", group)
        (member,) = json.loads(tritonmq("group", "describe", group, "--json").stdout)["cursors"][0]["members"]
        assert described.stdout.splitlines()[1].split(b"\t")[8] == member[:8].encode()
        assert f"member {member[:8]} has {topic}-0".encode() in described.stderr
        assert reader.end(signal.SIGINT) == 0
    assert tritonmq("topic", "create", f"{topic}.other").returncode == 0
    assert tritonmq("group", "reset", group, f"{topic}.other", "--to", "latest").returncode == 0
    planned = tritonmq("group", "reset", group, topic, "--by", "-2", "--plan", "--json")
    assert json.loads(planned.stdout) == [{"topic": topic, "partition": 0, "from": 5, "to": 3}]
    assert tritonmq("group", "peek", group, topic).stdout == b"", "a plan moves nothing"
    move_once_nobody_reads(group, topic, "--by", "-2")
    assert tritonmq("group", "peek", group, topic, "-n", "1").stdout == b"4\n"
    assert tritonmq("consume", topic, "--group", group, "--max", "2").stdout == b"4\n5\n"
    move_once_nobody_reads(group, topic, "--to", "1h", "--partition", "0")
    assert tritonmq("group", "peek", group, topic, "-n", "2").stdout == b"1\n2\n"


def move_once_nobody_reads(*words: str) -> None:
    """A reader has ended a moment before the broker hears of it."""
    wait_until(lambda: tritonmq("group", "reset", *words).returncode == 0, "the group is moved")


def test_who_misspells_a_group_or_its_topic_is_told(topic: str) -> None:
    group = f"misspelt-{topic}"
    moved = tritonmq("group", "reset", group, topic, "--to", "earliest")
    assert f"it was made now, `tritonmq group delete {group}` forgets it".encode() in moved.stderr
    assert tritonmq("group", "reset", group, topic, "--to", "earliest").stderr == b""
    near = f"did you mean '{group}'?".encode()
    for reset in (["--to", "earliest", "--plan"], ["--by", "1"]):
        assert near in tritonmq("group", "reset", group[:-1], topic, *reset).stderr
    assert near in tritonmq("group", "peek", group[:-1], topic).stderr
    assert f"did you mean '{topic}'?".encode() in tritonmq("group", "peek", group, topic[:-1]).stderr


def test_a_deleted_group_is_gone_and_is_not_deleted_unasked(topic: str) -> None:
    groups = [f"{name}-of-{topic}" for name in ("one", "two")]
    for group in groups:
        assert tritonmq("group", "reset", group, topic, "--to", "earliest").returncode == 0
    unasked = tritonmq("group", "delete", *groups)
    assert unasked.returncode == 1
    assert b"--yes" in unasked.stderr
    assert tritonmq("group", "delete", groups[0], "no-such-group", "--yes").returncode == 1
    assert tritonmq("group", "describe", groups[0]).returncode == 0, "all or none"
    assert tritonmq("group", "delete", *groups, "--yes").returncode == 0
    assert all(group.encode() not in tritonmq("group", "list").stdout for group in groups)


def test_the_last_messages_come_in_order_of_time_and_then_what_is_new(topic: str) -> None:
    name = f"{topic}.three"
    assert tritonmq("topic", "create", name, "-p", "3").returncode == 0
    for number in range(6):
        options = ["-p", str(number % 3), "--timestamp", f"2026-01-31T08:30:0{number}Z"]
        assert tritonmq("produce", name, *options, given=b"%d\n" % number).returncode == 0
    assert tritonmq("consume", name, "--tail", "4", "-e", "-f", "%s %D\\n").stdout.splitlines() == [
        b"%d 2026-01-31T08:30:0%dZ" % (number, number) for number in (2, 3, 4, 5)
    ]
    with Command("consume", name, "--tail", "2") as reader:
        assert [reader.line(), reader.line()] == ["4", "5"]
        assert tritonmq("produce", name, given=b"new\n").returncode == 0
        assert reader.line() == "new"
        assert reader.end(signal.SIGINT) == 0
    assert tritonmq("consume", name, "--tail", "2", "--from", "earliest").returncode == 2


def test_who_waits_at_the_end_is_told_how_to_read_what_is_there(topic: str) -> None:
    with Command("consume", topic) as reader:
        reader.remark_with("waiting for new messages; --from earliest reads what is there")
    assert b"--from earliest" in tritonmq("consume", topic, "-e").stderr


def test_a_topic_is_described_with_all_its_settings_and_purged(topic: str) -> None:
    name = f"{topic}.set"
    assert tritonmq("topic", "create", name, "--set", "durability=os").returncode == 0
    again = tritonmq("topic", "create", name, "--if-not-exists", "-p", "3")
    assert again.returncode == 0
    assert b"is there already: 1 partition" in again.stderr
    assert tritonmq("topic", "create", name).returncode == 1
    assert tritonmq("produce", name, given=b"1\n2\n3\n").returncode == 0
    lines = tritonmq("topic", "describe", name).stdout.decode().splitlines()
    assert "  durability = os" in lines
    assert "  min_insync_replicas = 1 (default)" in lines
    assert "  retention_ms = forever (default)" in lines
    assert any(line.startswith("3 records, ") for line in lines)
    found = json.loads(tritonmq("topic", "describe", name, "--json").stdout)
    assert (found["settings"], found["effective_settings"]["min_insync_replicas"]) == ({"durability": "os"}, "1")
    assert found["partitions"][0]["bytes"] > 0
    assert tritonmq("produce", name, "--delay", "1h", given=b"later\n").returncode == 0
    lines = tritonmq("topic", "describe", name).stdout.decode().splitlines()
    assert [line.split(" at ")[0] for line in lines if line.startswith("scheduled")] == [
        "scheduled: 1 more to be published, the next"
    ]
    [partition] = json.loads(tritonmq("topic", "describe", name, "--json").stdout)["partitions"]
    assert (partition["log_end_offset"], partition["scheduled"]) == (3, 1)
    for when in (["--delay", "soon"], ["--at", "1h ago"], ["--delay", "5", "--at", "2030-01-01T00:00:00Z"]):
        assert tritonmq("produce", name, *when, given=b"x\n").returncode == 2
    assert tritonmq("topic", "purge", name, "--before", "1").returncode == 1, "nobody said --yes"
    purged = tritonmq("topic", "purge", name, "--before", "1", "--yes")
    assert (purged.returncode, purged.stdout) == (0, f"topic\tpartition\tstart\n{name}\t0\t1\n".encode())
    assert tritonmq("consume", name, "--from", "earliest", "-e").stdout == b"2\n3\n"
    assert tritonmq("topic", "purge", name, "--yes").returncode == 0
    assert tritonmq("consume", name, "--from", "earliest", "-e").stdout == b""


def test_listings_are_tables_and_json(topic: str) -> None:
    assert tritonmq("produce", topic, given=b"1\n2\n").returncode == 0
    assert topic.encode() in tritonmq("topic", "list").stdout
    assert topic in [found["name"] for found in json.loads(tritonmq("topic", "list", "--json").stdout)]
    described = json.loads(tritonmq("topic", "describe", topic, "--json").stdout)
    assert described["partitions"] == [
        {
            "partition": 0,
            "leader": 1,
            "leader_epoch": 1,
            "replicas": [1],
            "isr": [1],
            "log_start_offset": 0,
            "log_end_offset": 2,
            "scheduled": 0,
            "next_due_us": None,
            "held_by": None,
        }
        | {"bytes": described["partitions"][0]["bytes"]}
    ]
    status = json.loads(tritonmq("cluster", "status", "--json").stdout)
    assert [broker["id"] for broker in status["brokers"]] == [1]
    assert (status["coordination"], status["partitions_without_leader"]) == ("file", 0)
    assert b"coordination: file" in tritonmq("cluster", "status").stdout


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["topic", "describe", "{topic}x"], "did you mean '{topic}'?"),
        (["topic", "delete", "nothing-like-it"], "nothing-like-it"),
        (["topic", "create", "{topic}"], "exists"),
        (["topic", "create", "more", "--replicas", "3"], "1"),
        (["produce", "{topic}x"], "did you mean '{topic}'?"),
        (["produce", "{topic}", "--partition", "7"], "7"),
        (["consume", "{topic}x", "-e"], "did you mean '{topic}'?"),
        (["consume", "{topic}", "--from", "99", "-e"], "99"),
    ],
)
def test_what_the_cluster_refuses_ends_with_1_and_says_why(bootstrap: str, command: list[str], says: str) -> None:
    topic = "refusals"
    tritonmq("topic", "create", topic, "--bootstrap", bootstrap)
    words = [word.format(topic=topic) for word in command]
    result = tritonmq(*words, "--bootstrap", bootstrap, given=b"x\n")
    assert (result.returncode, result.stdout) == (1, b"")
    (line,) = result.stderr.decode().splitlines()
    assert line.startswith("Error: ")
    assert says.format(topic=topic) in line


def test_a_deleted_topic_is_gone_and_is_not_deleted_unasked(topic: str) -> None:
    unasked = tritonmq("topic", "delete", topic)
    assert unasked.returncode == 1
    assert b"--yes" in unasked.stderr
    assert tritonmq("topic", "delete", topic, "--yes").returncode == 0
    assert tritonmq("topic", "describe", topic).returncode == 1


def test_a_reader_whose_reader_has_had_enough_ends_in_silence(topic: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(50_000))
    assert tritonmq("produce", topic, "-q", given=lines).returncode == 0
    for options in (["--exit-at-end"], []):
        consume = [sys.executable, "-m", "mq_cli.main", "consume", topic, "--from", "earliest", *options]
        with subprocess.Popen(consume, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"line 0\n"
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(30) == 0
