"""The console in a real browser, of three brokers with traffic: `make browser`. Its pictures are those of the docs."""

from __future__ import annotations

import json
import math
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from mq_client import Admin, Consumer, Producer
from mq_dev.local_cluster import LocalCluster
from tests.mq_cli.processes import Command
from tests.mq_console.browser import ROOT, Browser, browser

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get("TRITONMQ_TEST_BROWSER"), reason="needs a browser: make browser"),
]

IMAGES = ROOT / "docs" / "images"
IMAGE_BYTES_MAX = 150_000
DEATH_S = 2.0
LAG_S = 10.0
HARM = "<img src=x onerror=alert(1)>"
GROUP = '"><svg onload=alert(1)>'
WIDTHS = ((1280, 860), (390, 844))
PAGES = ("/", "/topics", "/topics/orders", "/topics/orders/tail", "/groups", "/groups/billing", "/brokers/2")
OTHER_PAGES = ("/queues", "/sinks", "/moves", "/nowhere")


class Traffic:
    """A producer and readers, until closed. Owns their threads."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._over = threading.Event()
        self.reading = threading.Event()
        self.reading.set()
        works = [self._produce, lambda: self._read("billing", "orders"), lambda: self._read("mailer", "emails", 0.2)]
        self._threads = [threading.Thread(target=work) for work in works]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _produce(self) -> None:
        chance, number = random.Random(7), 0
        with Producer(self._bootstrap) as producer:
            while not self._over.wait(0.2):
                wave = 1 + 0.6 * math.sin(time.monotonic() / 9)
                for _ in range(int(60 * wave)):
                    number += 1
                    order = {"id": number, "total": round(chance.random() * 500, 2), "items": chance.randint(1, 5)}
                    key = f"customer-{number % 50}".encode()
                    producer.publish("orders", json.dumps(order).encode(), key=key, headers=[("source", b"web")])
                    if number % 3 == 0:
                        producer.publish("payments", b'{"ok": true}', key=key)
                    if number % 9 == 0:
                        producer.publish("emails", b"Your order is on its way", key=key)
                    if number % 2 == 0:
                        flight = {"carrier": chance.choice(["UA", "AA", "DL"]), "dep_delay": chance.randint(-9, 200)}
                        producer.publish("flights", {**flight, "origin": "EWR", "distance": 1400})

    def _read(self, group: str, topic: str, pause_s: float = 0.0) -> None:
        with Consumer(self._bootstrap, group, start="earliest", settle_ms=500) as consumer:
            consumer.subscribe(topic)
            while not self._over.is_set():
                if self.reading.is_set() and consumer.take(timeout_ms=200) is not None and pause_s:
                    self._over.wait(pause_s)


@dataclass(frozen=True)
class Scene:
    cluster: LocalCluster
    admin: Admin
    producer: Producer
    traffic: Traffic
    address: str
    browser: Browser

    def open(self, path: str) -> None:
        self.browser.open(self.address + path)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with LocalCluster(tmp_path_factory.mktemp("console"), 3) as cluster, Admin(cluster.bootstrap) as admin:
        for name in ("orders", "payments", "emails", "audit-log"):
            admin.create_topic(name, partitions=4, replicas=3)
        columns = "carrier string, origin string, dep_delay int, distance long"
        admin.create_topic("flights", partitions=3, replicas=3, schema=columns)
        words = ["console", "--listen", "127.0.0.1:0", "--bootstrap", cluster.bootstrap]
        with (
            Traffic(cluster.bootstrap) as traffic,
            Producer(cluster.bootstrap) as producer,
            Command(*words) as console,
            browser() as opened,
        ):
            address = console.line().removeprefix("console ")
            opened.size(*WIDTHS[0])
            yield Scene(cluster, admin, producer, traffic, address, opened)


@pytest.fixture(autouse=True)
def _nothing_is_complained_about(scene: Scene) -> Iterator[None]:
    scene.browser.log()
    yield
    assert [line for line in scene.browser.log() if "/nowhere" not in line] == []


def until(scene: Scene, script: str, what: str, deadline_s: float = 30.0) -> None:
    scene.browser.until(lambda: scene.browser.run(f"return {script}"), what, deadline_s)


def refreshed(scene: Scene, times: int = 2) -> None:
    """Wait until the page has asked for itself so often."""
    for _ in range(times):
        before = scene.browser.text("#fresh")
        scene.browser.until(lambda before=before: scene.browser.text("#fresh") != before, "the page asks for itself")


@pytest.mark.parametrize("width", WIDTHS, ids=lambda size: str(size[0]))
def test_every_page_fits_its_window_in_both_colours(scene: Scene, width: tuple[int, int]) -> None:
    scene.browser.size(*width)
    for path in (*PAGES, *OTHER_PAGES):
        scene.open(path)
        for scheme in ("dark", "light"):
            scene.browser.colours(scheme)
            assert scene.browser.run("return document.documentElement.scrollWidth") <= width[0], path
        back = scene.browser.run("return getComputedStyle(document.body).backgroundColor")
        assert back == "rgb(245, 247, 249)", "the style sheet is there"
    scene.browser.size(*WIDTHS[0])


def test_names_and_records_that_mean_harm_are_text(scene: Scene) -> None:
    scene.admin.create_topic(HARM)
    scene.producer.publish(HARM, b"</script><script>alert(2)</script>", key=b"<b>key", headers=[("<i>", b"<u>")])
    scene.producer.flush()
    scene.admin.move_group(GROUP, {HARM: {0: 0}})
    name = quote(HARM, safe="")
    paths = ["/topics", f"/topics/{name}", f"/topics/{name}/tail", "/groups", f"/groups/{quote(GROUP, safe='')}"]
    for path in paths:
        scene.open(path)
        refreshed(scene)
        found = scene.browser.run("return document.querySelectorAll('main img, main svg[onload], b, i, u').length")
        assert found == 0, path
        assert HARM in scene.browser.text() or GROUP in scene.browser.text()
    scene.admin.delete_group(GROUP)
    scene.admin.delete_topic(HARM)


def test_a_page_moves_with_the_cluster_and_leaves_what_a_person_does_alone(scene: Scene) -> None:
    scene.open("/topics?sort=-records")
    box = scene.browser.run("document.body.focus(); return document.getElementById('q')")
    scene.browser.run("document.activeElement.blur()")
    scene.browser.press("/")
    assert scene.browser.run("return document.activeElement.id") == "q"
    scene.browser.press("ers")
    until(scene, "document.querySelectorAll('#topics tbody tr').length === 1", "the filter is applied as it is typed")
    assert "sort=-records&q=ers" in scene.browser.driver.current_url.replace(
        "q=ers&sort=-records", "sort=-records&q=ers"
    )
    records = scene.browser.text("#topics tbody td:nth-child(3)")
    line = scene.browser.run("return document.querySelector('#topics .spark path').getAttribute('d')")
    now = "document.querySelector('#topics tbody td:nth-child(3)').innerText"
    until(scene, f"{now} !== {records!r}", "the number of records grows", LAG_S)
    path = "document.querySelector('#topics .spark path').getAttribute('d')"
    until(scene, f"{path} !== {line!r}", "the line of the topic moves", LAG_S)
    assert scene.browser.run("return document.activeElement === arguments[0] && arguments[0].value === 'ers'", box)

    scene.open("/topics/orders/tail?partition=0&from=0")
    scene.browser.run("document.querySelector('details').open = true; window.scrollTo(0, 300)")
    refreshed(scene)
    assert scene.browser.run("return document.querySelector('details').open && window.scrollY === 300")
    assert '"total":' in scene.browser.text("details[open] pre")


def test_no_part_of_a_page_jumps_when_it_is_refreshed(scene: Scene) -> None:
    scene.open("/")
    refreshed(scene, 3)
    scene.browser.run(
        "window.moved = 0; new PerformanceObserver((list) => { for (const each of list.getEntries()) "
        "window.moved += each.value; }).observe({ type: 'layout-shift' })"
    )
    refreshed(scene, 4)
    assert scene.browser.run("return window.moved") < 0.02


def test_a_row_that_was_just_published_is_shown(scene: Scene) -> None:
    scene.open("/topics/audit-log/tail")
    scene.producer.publish("audit-log", b"alice has looked at order 17")
    scene.producer.flush()
    until(scene, "document.body.innerText.includes('alice has looked at order 17')", "the row", LAG_S)


def test_the_lag_of_a_reader_that_stops_grows(scene: Scene) -> None:
    scene.open("/groups/billing")
    lag = "Number(document.querySelector('.lag').innerText.replaceAll(',', ''))"
    until(scene, f"document.querySelector('.lag') && {lag} < 2000", "it keeps up")
    scene.traffic.reading.clear()
    try:
        shown: list[float] = []  # what it had read is settled a moment later: until then it may fall
        for what in ("the lag grows", "it goes on growing"):
            scene.browser.until(lambda: grows(shown, scene.browser.run(f"return {lag}")), what, LAG_S)
            del shown[:-1]
    finally:
        scene.traffic.reading.set()


def grows(shown: list[float], lag: float) -> bool:
    """Whether it is above the least that was shown."""
    shown.append(lag)
    return lag > min(shown)


def test_pictures_for_the_docs(scene: Scene) -> None:
    IMAGES.mkdir(exist_ok=True)
    points = "document.querySelector('.chart').dataset.labels.split('|').filter(Boolean).length"
    scene.open("/")
    until(scene, f"{points} > 30", "there is some history", 240)
    pictures = {"overview": "/", "topic": "/topics/orders", "rows": "/topics/flights/tail?filter=dep_delay+>+180"}
    for name, path in pictures.items():
        shoot(scene, name, path)
    scene.browser.colours("dark")
    shoot(scene, "overview-dark", "/")
    scene.browser.size(*WIDTHS[1])
    shoot(scene, "phone", "/")
    scene.browser.size(*WIDTHS[0])
    scene.browser.colours("light")


def shoot(scene: Scene, name: str, path: str) -> None:
    scene.open(path)
    refreshed(scene)
    picture = IMAGES / f"console-{name}.png"
    scene.browser.shoot(picture)
    assert picture.stat().st_size < IMAGE_BYTES_MAX


def test_the_death_of_a_broker_is_told_within_two_seconds_and_its_return(scene: Scene) -> None:
    scene.open("/")
    until(scene, "document.getElementById('problems-count').innerText === 'all is well'", "all is well", 60)
    refreshed(scene)
    scene.cluster.kill(3)
    until(
        scene,
        "document.querySelector('#broker-3 .badge.bad') && document.querySelector('.problems .bad')",
        "the death is told",
        DEATH_S,
    )
    assert "broker" in scene.browser.text(".problems .bad p")
    until(scene, "!document.querySelector('main').innerText.includes('without a leader')", "others lead", 60)
    until(scene, "document.body.innerText.includes('not fully in sync')", "what it held is not in sync", 60)
    shoot(scene, "problem", "/")
    scene.cluster.restart(3)
    until(scene, "document.getElementById('problems-count').innerText === 'all is well'", "its return is told", 90)


def test_a_console_that_ends_is_told_by_the_page(scene: Scene, tmp_path: Path) -> None:
    with Command("console", "--listen", "127.0.0.1:0", "--bootstrap", scene.cluster.bootstrap) as console:
        scene.browser.open(console.line().removeprefix("console "))
        refreshed(scene)
    until(scene, "document.getElementById('fresh').innerText === 'no console'", "the page says so", LAG_S)
    assert scene.browser.text("#brokers")
    assert all("ERR_CONNECTION_REFUSED" in line for line in scene.browser.log())
