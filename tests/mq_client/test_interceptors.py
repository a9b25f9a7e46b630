"""Interceptors: each record goes through all of them in order, and nothing passes them unseen; plug-ins of the docs."""

from __future__ import annotations

import re
import tomllib
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mq_client import Admin, Consumer, ConsumerRecord, InvalidRequest, InvalidSetting, OutgoingRecord, Producer

ROOT = Path(__file__).parents[2]


def consumed(bootstrap: str, topic: str, count: int, **options: Any) -> list[ConsumerRecord]:
    with Consumer(bootstrap, start="earliest", idle_ms=20_000, **options) as consumer:
        consumer.subscribe(topic)
        found = list(islice(consumer, count))
        assert consumer.take(200) is None
        return found


def plus(mark: str) -> Any:
    return lambda record: record._replace(value=record.value + mark)


def test_records_go_through_all_in_order_before_serializers_and_after_deserializers(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)

    def keyed(record: OutgoingRecord) -> OutgoingRecord:
        assert record == OutgoingRecord(topic, "v12", None, None)
        return record._replace(key="k", headers={"h": b"x"})

    with Producer(bootstrap, value_serializer="json", interceptors=[plus("1"), plus("2"), keyed]) as producer:
        producer.publish(topic, "v").result(20)
        producer.publish(topic, "v", delay_ms=1).result(20)
    found = consumed(bootstrap, topic, 2, value_deserializer="json", interceptors=[plus("3"), plus("4")])
    assert [(record.value, record.key) for record in found] == [("v1234", b"k")] * 2
    assert found[0].headers == (("h", b"x"),)


def test_plain_records_go_through_them_too(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap, interceptors=[lambda record: record._replace(value=b"seen")]) as producer:
        for _ in range(3):  # the second and third would take the quick way
            producer.publish(topic, b"secret").result(20)
    assert [record.value for record in consumed(bootstrap, topic, 3)] == [b"seen"] * 3


def test_rows_of_a_typed_topic_go_through_them(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema="n long")
    with Producer(bootstrap, interceptors=[lambda record: record._replace(value={"n": record.value})]) as producer:
        producer.publish(topic, 7).result(20)
    assert [record.value for record in consumed(bootstrap, topic, 1)] == [{"n": 7}]


def test_nothing_passes_them_unseen(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap, interceptors=[lambda record: record]) as producer:
        with pytest.raises(InvalidRequest, match="publish_many does not show each record"):
            producer.publish_many(topic, ["a"])
        with pytest.raises(InvalidRequest, match="publish_batch does not show each record"):
            producer.publish_batch(topic, pa.table({"value": [b"a"]}))


def test_an_answer_that_is_no_record_and_an_error_reach_the_caller(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)

    def fails(record: Any) -> Any:
        if record.value in (b"bad", "bad"):
            raise KeyError("bad")
        return record

    def forgets(record: Any) -> Any:
        return None if record.value == "none" else record

    with Producer(bootstrap, interceptors=[fails, forgets]) as producer:
        with pytest.raises(KeyError):
            producer.publish(topic, "bad")
        with pytest.raises(InvalidRequest, match="answered NoneType: give back the record"):
            producer.publish(topic, "none")
        producer.publish(topic, "good").result(20)
    with (
        Producer(bootstrap, interceptors=[lambda record: record._replace(topic="other")]) as producer,
        pytest.raises(InvalidRequest, match="of topic 'other', and not"),
    ):
        producer.publish(topic, "x")
    with Producer(bootstrap) as producer:
        producer.publish(topic, "bad")
        producer.publish(topic, "after")
    with Consumer(bootstrap, start="earliest", interceptors=[fails]) as consumer:
        consumer.subscribe(topic)
        first = consumer.take(20_000)
        assert first is not None
        assert first.value == b"good"
        with pytest.raises(KeyError):
            consumer.take(20_000)
        last = consumer.take(20_000)
        assert last is not None
        assert last.value == b"after"


@pytest.mark.parametrize("given", ["stamped", None, ["no-such"], [7]])
def test_what_is_no_interceptor_is_refused(given: Any) -> None:
    for client in (Producer, Consumer):
        with pytest.raises(InvalidSetting, match="interceptor"):
            client("127.0.0.1:1", interceptors=given)


def test_the_package_of_the_docs_offers_what_it_says(
    admin: Admin, bootstrap: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/python.md").read_text()
    page = page[page.index("## Interceptors and plug-ins") : page.index("## Compression")]
    project = tomllib.loads(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])["project"]
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    (tmp_path / "shop.py").write_text(code.replace(code[code.index("Admin(") : code.index("def first")], ""))
    about = tmp_path / "shop_for_tritonmq-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {point}" for name, point in points.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    admin.create_topic(topic, partitions=3)
    with Producer(bootstrap, interceptors=["stamped"], partitioner="first", value_serializer="upper") as producer:
        assert producer.publish(topic, "hello", key="k").result(20).partition == 0
    assert [(record.value, record.headers) for record in consumed(bootstrap, topic, 1, interceptors=["loud"])] == [
        (b"HELLO", (("app", b"shop"),))
    ]
