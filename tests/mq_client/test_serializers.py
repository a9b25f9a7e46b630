"""Values to bytes and back: what is built in, callables, what packages bring, and errors that say what to do."""

from __future__ import annotations

import json
import marshal
import pickle
from pathlib import Path
from typing import Any

import pytest

from mq_client import Admin, Consumer, InvalidRequest, InvalidSetting, NotDeserialized, Producer
from mq_client.serializers import deserializer_of, serializer_of
from tests.mq_client.producing.test_partitioners import install


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("json", {"a": [1, "ü", None]}, '{"a":[1,"ü",null]}'.encode()),
        ("string", "ü", "ü".encode()),
        ("bytes", b"\xff", b"\xff"),
    ],
)
def test_what_a_producer_serializes_a_consumer_gives_back(
    bootstrap: str, admin: Admin, topic: str, name: str, value: object, data: bytes
) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap, value_serializer=name, key_serializer="json") as producer:
        producer.publish(topic, value, key=[7])
        producer.publish(topic, None)
    with Consumer(bootstrap, start="earliest", key_deserializer="json", value_deserializer=name) as consumer:
        consumer.subscribe(topic)
        first, second = consumer.take(30_000), consumer.take(30_000)
    assert first is not None
    assert second is not None
    assert (first.key, first.value, second.key, second.value) == ([7], value, None, None)
    with Consumer(bootstrap, start="earliest") as consumer:
        consumer.subscribe(topic)
        raw = consumer.records()[topic].get(timeout=30)
    assert (raw.key, raw.value) == (b"[7]", data)


def test_callables_are_called_and_rows_keep_their_types(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, schema="n long")
    with Producer(
        bootstrap, value_serializer=lambda value: b"never", key_serializer=lambda key: b"%d" % key
    ) as producer:
        producer.publish(topic, {"n": 1}, key=5).result(30)
    with Consumer(bootstrap, start="earliest", value_deserializer=lambda data: "never") as consumer:
        consumer.subscribe(topic)
        record = consumer.take(30_000)
    assert record is not None
    assert record.value == {"n": 1}


def test_a_value_that_cannot_be_serialized_is_refused_and_named(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    cases: list[tuple[Any, Any, str]] = [
        ("json", {1, 2}, "value_serializer cannot serialize set: TypeError"),
        ("json", float("nan"), "value_serializer cannot serialize float: ValueError"),
        ("string", b"x", "TypeError: bytes is not str"),
        ("bytes", "x", "TypeError: str is not bytes"),
        (lambda value: "text", "x", "value_serializer answered str, not bytes"),
        (lambda value: 1 / 0, "x", "ZeroDivisionError"),
    ]
    for serializer, value, says in cases:
        with Producer(bootstrap, value_serializer=serializer) as producer, pytest.raises(InvalidRequest, match=says):
            producer.publish(topic, value)
    with (
        Producer(bootstrap, key_serializer="json") as producer,
        pytest.raises(InvalidRequest, match="key_serializer cannot"),
    ):
        producer.publish(topic, b"x", key=b"x")


def test_a_record_that_cannot_be_read_is_named_and_the_next_one_follows(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap) as producer:
        for value in (b"1", b"{", b"3", b"[", b"5"):
            producer.publish(topic, value)
    with Consumer(bootstrap, group=f"g-{topic}", start="earliest", value_deserializer="json") as consumer:
        consumer.subscribe(topic)
        queue = consumer.records()[topic]
        assert queue.get(timeout=30).value == 1
        with pytest.raises(
            NotDeserialized, match=f"the value of offset 1 of '{topic}' partition 0 .* JSONDecodeError"
        ) as failed:
            queue.get(timeout=30)
        assert failed.value.record.value == b"{"
        assert [record.value for record in (consumer.take(30_000),) if record] == [3]
        with pytest.raises(NotDeserialized, match="offset 3"):
            consumer.take(30_000)
        assert [record.value for record in (consumer.take(30_000),) if record] == [5]


def test_an_installed_package_brings_a_serializer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "class offered:\n    dumps = staticmethod(lambda value: value[::-1].encode())\n"
    code += "    loads = staticmethod(lambda data: data.decode()[::-1])\n"
    install(tmp_path, "tritonmq.serializers", "backwards", code)
    monkeypatch.syspath_prepend(str(tmp_path))
    serialize, deserialize = serializer_of("s", "backwards"), deserializer_of("d", "backwards")
    assert serialize is not None
    assert deserialize is not None
    assert serialize("abc") == b"cba"
    assert deserialize(b"cba") == "abc"
    with pytest.raises(InvalidSetting, match="s='backward' is not known: did you mean 'backwards'"):
        serializer_of("s", "backward")
    more = tmp_path / "more"
    more.mkdir()
    install(more, "tritonmq.serializers", "halves", "class offered:\n    dumps = staticmethod(str.encode)\n")
    monkeypatch.syspath_prepend(str(more))
    with pytest.raises(InvalidSetting, match="lacks `dumps` or `loads`"):
        deserializer_of("d", "halves")


@pytest.mark.parametrize("given", ["pickle", pickle.dumps, pickle.loads, "marshal", marshal.loads])
def test_pickle_is_refused(given: Any) -> None:
    for made in (serializer_of, deserializer_of):
        with pytest.raises(InvalidSetting, match="whoever"):
            made("value_serializer", given)


def test_a_package_cannot_bring_pickle_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "tritonmq.serializers", "innocent", "import pickle as offered\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidSetting, match="whoever"):
        deserializer_of("value_deserializer", "innocent")


def test_pythons_own_json_may_be_given_as_a_callable() -> None:
    assert deserializer_of("d", json.loads) is json.loads
