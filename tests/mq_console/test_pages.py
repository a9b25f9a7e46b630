"""Every page and its JSON, asked of a console that looks at a real broker whose names and records mean harm."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import mq_console
from mq_client import Admin, GroupObservation, PartitionObservation, Producer
from mq_console.views import Group
from mq_dev.local_cluster import LocalCluster
from tests.cluster.harness import wait_until
from tests.mq_console.served import served

TOPIC = "<img src=x onerror=alert(1)>"
TYPED = "typed & 'quoted'"
COLUMN = "a<script>alert(1)<!--"
GROUP = '"><svg onload=alert(1)>'
HARM = "</script><script>alert(1)</script>\u202e"
PAGES = ["/", "/brokers/1", "/topics", "/groups", "/queues", "/sinks", "/moves"]
OWN_SCRIPTS = {"/static/vendor/idiomorph.min.js", "/static/console.js"}


class Seen(HTMLParser):
    """What a browser makes of a page: its elements, and what is text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("console")) as cluster:
        with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            admin.create_topic(TOPIC, partitions=2)
            admin.create_topic(TYPED, schema=f"`{COLUMN}` string, n long", durability="os")
            admin.create_topic("empty")
            for n in range(30):
                headers = [(HARM, HARM.encode()), ("h", b"\xff")]
                producer.publish(TOPIC, HARM.encode(), key=HARM.encode(), headers=headers, partition=n % 2)
                producer.publish(TYPED, {COLUMN: HARM, "n": n})
            producer.flush()
            admin.move_group(GROUP, {TOPIC: {0: 3, 1: 5}})
            admin.declare_queue(TOPIC, "workers")
        yield cluster.bootstrap


@pytest.fixture(scope="module")
def client(bootstrap: str) -> Iterator[httpx.Client]:
    with served(bootstrap) as client:
        yield client


@pytest.fixture(scope="module")
def acting(bootstrap: str) -> Iterator[httpx.Client]:
    with served(bootstrap, actions=True) as client:
        yield client


def topic_page(name: str, rest: str = "") -> str:
    return f"/topics/{quote(name, safe='')}{rest}"


def data(client: httpx.Client, path: str, status: int = 200) -> Any:
    answer = client.get(f"/api/v1{path}")
    assert answer.status_code == status, answer.text
    assert not set(b"<>&") & set(answer.content)
    return answer.json()


def checked(client: httpx.Client, path: str, status: int = 200) -> Seen:
    """The page. No element and no attribute in it is of a record's or a name's making."""
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    seen = Seen(answer.text)
    tags = {tag for tag, _ in seen.elements}
    assert not tags & {"img", "iframe", "object", "embed", "style", "base", "b"} - {"img"}
    for tag, attributes in seen.elements:
        assert not any(name.startswith("on") or name in ("style", "srcdoc") for name in attributes), (tag, attributes)
        if tag == "script":
            assert str(attributes["src"]).partition("?")[0] in OWN_SCRIPTS
        if tag == "img":
            assert str(attributes["src"]).startswith("/static/icon.svg")
        for name in ("href", "src", "action"):
            assert str(attributes.get(name) or "/").startswith(("/", "?", "#")), attributes
            assert not str(attributes.get(name) or "").startswith("//"), attributes
    return seen


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_there_and_takes_nothing_from_names(client: httpx.Client, path: str) -> None:
    assert "TritonMQ" in checked(client, path).words
    data(client, "/overview" if path == "/" else path)


def test_pages_of_a_topic_and_a_group_show_names_and_records_as_they_are(client: httpx.Client) -> None:
    assert TOPIC in checked(client, "/").words
    assert TOPIC in checked(client, "/topics").words
    assert TOPIC in checked(client, topic_page(TOPIC)).words
    assert GROUP in checked(client, f"/groups/{quote(GROUP, safe='')}").words
    rows = checked(client, topic_page(TOPIC, "/tail")).words
    assert HARM.replace("\u202e", "\\u202e") in rows
    assert "h=base64:/w==" in rows
    typed = checked(client, topic_page(TYPED, "/tail")).words
    assert COLUMN in typed
    assert COLUMN in checked(client, topic_page(TYPED)).words


def test_figures_are_those_of_the_observation_under_its_names(client: httpx.Client, bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        observed = admin.observe("partitions")
    (row,) = [each for each in data(client, "/topics")["rows"] if each["name"] == TOPIC]
    assert (row["records"], row["partitions"], row["partitions_without_leader"]) == (30, 2, 0)
    partitions = data(client, topic_page(TOPIC))["partitions"]
    assert set(partitions[0]) == {each.name for each in fields(PartitionObservation)}
    assert [each["log_end_offset"] for each in partitions] == [15, 15]
    (group,) = data(client, "/groups")["rows"]
    assert {each.name for each in fields(GroupObservation)} < {each.name for each in fields(Group)}
    assert (group["group"], group["topic"], group["lag"]) == (GROUP, TOPIC, 12 + 10)
    (broker,) = data(client, "/overview")["brokers"]
    assert set(broker["observed"]["values"]) == set(observed.brokers[0].values)
    assert broker["leads"] == len([each for each in observed.partitions if each.leads])

    def ready() -> dict[str, int]:
        rows = data(client, "/queues")["rows"]
        return {queue["group"]: sum(each["ready"] for each in told["partitions"]) for queue, told, _ in rows if told}

    wait_until(lambda: ready() == {"workers": 30}, "the leaders tell of the queue")


def test_a_tail_has_the_newest_rows_those_from_an_offset_or_those_that_a_filter_keeps(client: httpx.Client) -> None:
    def offsets(query: str, name: str = TYPED) -> list[tuple[int, int]]:
        page = topic_page(name, f"/tail?{query}")
        tail = wait_until(lambda: data(client, page)["tail"], "rows, for which a page does not wait long")
        return [(row["partition"], row["offset"]) for row in tail["rows"]]

    assert offsets("rows=3") == [(0, 29), (0, 28), (0, 27)]
    assert offsets("partition=0&from=4&rows=2") == [(0, 4), (0, 5)]
    assert offsets("partition=0&from=28") == [(0, 28), (0, 29)]
    assert offsets("partition=0&from=99") == []
    assert sorted(offsets("filter=" + quote("n < 3"))) == [(0, 0), (0, 1), (0, 2)]
    assert offsets("rows=2&filter=" + quote("n < 3")) == [(0, 2), (0, 1)]
    assert offsets("partition=0&from=1&filter=" + quote("n < 3")) == [(0, 1), (0, 2)]
    assert len(offsets("rows=20", TOPIC)) == 20
    assert {partition for partition, _ in offsets("partition=1", TOPIC)} == {1}
    assert offsets("", "empty") == []


@pytest.mark.parametrize(
    ("query", "said"),
    [("from=3", "choose the partition too"), ("partition=9", "no partition 9"), ("filter=n+%3E", "filter")],
)
def test_a_tail_that_cannot_be_had_says_why(client: httpx.Client, query: str, said: str) -> None:
    page = checked(client, topic_page(TYPED, f"/tail?{query}"))
    assert said in page.words
    assert ("p", "alert") in [(tag, attributes.get("role")) for tag, attributes in page.elements]


def test_hidden_values_are_nowhere_not_even_in_what_a_filter_finds(bootstrap: str) -> None:
    with served(bootstrap, hide_values=True) as client:
        for name in (TOPIC, TYPED):
            page, told = (
                client.get(topic_page(name, "/tail")).text,
                client.get(f"/api/v1{topic_page(name, '/tail')}").text,
            )
            assert "alert(1)&lt;/script" not in page
            assert "alert(1)\\u003c/script" not in told
            assert len(json.loads(told)["tail"]["rows"]) == 30
        assert "values are hidden" in client.get(topic_page(TYPED, "/tail?filter=n%3C3")).text
        assert data(client, topic_page(TYPED, "/tail?filter=n%3C3"))["tail"] is None


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nowhere", 404),
        ("/topics/no-such", 404),
        ("/groups/no-such", 404),
        ("/topics/__x%00y", 400),
        ("/brokers/99", 404),
        ("/static/../web.py", 404),
        ("/actions/delete-topic", 404),
    ],
)
def test_what_is_not_there_is_said_by_a_page(client: httpx.Client, path: str, status: int) -> None:
    checked(client, path, status)


def test_lists_are_filtered_and_sorted_by_their_address(client: httpx.Client) -> None:
    rows = data(client, "/topics?q=TYPED&sort=-records")["rows"]
    assert [each["name"] for each in rows] == [TYPED]
    assert [each["name"] for each in data(client, "/topics?sort=name")["rows"]] == sorted([TOPIC, TYPED, "empty"])
    words = checked(client, "/topics?q=%22%3E%3Cscript%3E").words
    assert "No topic has this text in its name" in words


# ------------------------------------------------------------------ actions


def form(client: httpx.Client, action: str, query: str = "") -> dict[str, str]:
    """What a browser would send for the form as it is shown."""
    page = checked(client, f"/actions/{action}{query}")
    fields_ = [attributes for tag, attributes in page.elements if tag == "input"]
    return {str(each["name"]): str(each.get("value") or "") for each in fields_}


def test_actions_do_what_they_say_and_show_the_command(acting: httpx.Client, bootstrap: str) -> None:
    given = form(acting, "create-topic", "?topic=made%20here") | {"partitions": "2", "settings": "durability=os"}
    done = acting.post("/actions/create-topic", data=given)
    assert done.status_code == 200, done.text
    assert "tritonmq topic create 'made here' --partitions 2 --replicas 1 --set durability=os" in Seen(done.text).words
    with Admin(bootstrap) as admin:
        assert admin.describe_topic("made here").settings == {"durability": "os"}
        given = form(acting, "delete-topic", "?topic=made%20here")
        refused = acting.post("/actions/delete-topic", data=given | {"confirm": "made"})
        assert refused.status_code == 400
        assert "made here" in admin.list_topics()
        assert acting.post("/actions/delete-topic", data=given | {"confirm": "made here"}).status_code == 200
        wait_until(lambda: "made here" not in admin.list_topics(), "it is deleted")


def test_an_action_without_the_secret_of_its_form_is_not_done(acting: httpx.Client, bootstrap: str) -> None:
    given = form(acting, "purge-topic", f"?topic={quote(TYPED)}") | {"confirm": TYPED}
    for token in ("", "0" * 64, "é"):
        assert acting.post("/actions/purge-topic", data=given | {"token": token}).status_code == 403
    assert acting.post("/actions/purge-topic", content=b"x" * 100_000).status_code == 413
    assert acting.post("/actions/purge-topic", content=b"\xff").status_code == 400
    with Admin(bootstrap) as admin:
        assert admin.offsets(TYPED) == {0: (0, 30)}


@pytest.mark.parametrize(
    ("action", "given", "said"),
    [
        ("create-topic", {"topic": "t", "partitions": "many", "replicas": "1"}, "whole number"),
        ("create-topic", {"topic": "t", "partitions": "1", "replicas": "1", "settings": "replicas=3"}, "no setting"),
        ("create-topic", {"topic": "a/b", "partitions": "1", "replicas": "1"}, "U+002F"),
        ("alter-topic", {"topic": "empty", "settings": "x"}, "NAME=VALUE"),
        ("move-partition", {"topic": "empty", "partition": "0", "brokers": "one"}, "no list of brokers"),
        ("reset-group", {"group": "g", "confirm": "g", "topic": "empty", "to": "soon"}, "neither earliest"),
    ],
)
def test_an_action_that_is_refused_says_why(
    acting: httpx.Client, action: str, given: dict[str, str], said: str
) -> None:
    answer = acting.post(f"/actions/{action}", data=form(acting, action) | given)
    assert answer.status_code == 400
    assert said in Seen(answer.text).words


def test_a_console_below_a_path_stays_there(bootstrap: str) -> None:
    console = mq_console.app(bootstrap)

    async def ask() -> None:
        below = httpx.ASGITransport(Starlette(routes=[Mount("/mq", console)]))
        async with httpx.AsyncClient(transport=below, base_url="http://login.example") as client:
            page = Seen((await client.get("/mq/topics")).text)
            links = [str(attributes["href"]) for tag, attributes in page.elements if tag in ("a", "link")]
            assert all(link.startswith(("/mq/", "?", "#")) for link in links), links
            style = next(link for link in links if "console.css" in link)
            assert (await client.get(style)).status_code == 200

    try:
        asyncio.run(ask())
    finally:
        console.close()


def test_nothing_is_fetched_from_another_host_and_vendored_files_are_what_they_were() -> None:
    home = Path(__file__).parents[2] / "src" / "mq_console"
    for path in [*home.glob("templates/*.html"), home / "static/console.css", home / "static/console.js"]:
        assert (
            re.findall(r"(?:https?:)?//\w[\w.]+", re.sub(r"^ *// .*|/\*.*?\*/", "", path.read_text(), flags=re.M)) == []
        )
        assert "<script>" not in path.read_text()
        assert " style=" not in path.read_text()
    vendor = home / "static" / "vendor"
    told = [line.split() for line in (vendor / "VERSIONS").read_text().splitlines() if not line.startswith("#")]
    assert {path.name for path in vendor.iterdir()} == {
        "VERSIONS",
        *(name for file, lib, *_ in told for name in (file, f"{lib}.LICENSE")),
    }
    for file, *_, sha256 in told:
        assert hashlib.sha256((vendor / file).read_bytes()).hexdigest() == sha256
