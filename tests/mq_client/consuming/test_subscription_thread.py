"""When the thread of a subscription looks at the leaders, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from mq_client.cluster import deadline as deadline_module
from mq_client.cluster.deadline import Deadline
from mq_client.consuming.health import Health
from mq_client.errors import NotLeader, UnknownTopic
from tests.mq_client.cluster.scripted import topic_info
from tests.mq_client.consuming.played_subscription import CREDIT, Client, big
from tests.mq_client.wakes import Wakes


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client(monkeypatch)
    made.subscribe("t")
    return made


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client(monkeypatch, "g")
    made.subscribe("t")
    return made


# ---------------------------------------------------------------- the thread


class Looks:
    """Owns when the thread looks at the leaders, and what happens while it waits. Ends it after the last look."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.subscriptions = client.subscriptions
        self.clock = client.connection.clock
        self.at: list[float] = []
        self.waits: list[float] = []
        self.meanwhile: list[Callable[[], object]] = []
        self._left = 0
        self._began = self.clock.now
        monkeypatch.setattr(deadline_module, "time", self.clock)
        monkeypatch.setattr(
            deadline_module, "random", SimpleNamespace(Random=lambda: SimpleNamespace(random=lambda: 1.0))
        )
        monkeypatch.setattr(self.subscriptions, "_follow_leaders", self._look)
        monkeypatch.setattr(self.subscriptions._work, "wait", self._wait)
        self.subscriptions._look = False

    def _look(self) -> None:
        self.at.append(round(self.clock.now - self._began, 6))
        self._left -= 1
        if not self._left:
            self.subscriptions._stopping = True

    def _wait(self, timeout: float) -> None:
        self.waits.append(timeout)
        self.clock.now += timeout
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def run(self, count: int) -> list[float]:
        self._left = count
        self.subscriptions._run()
        return self.at


@pytest.fixture
def looks(member: Client, monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Both partitions are opened; places are settled every 10 ms."""
    for stream, partition in zip(member.streams, (0, 1), strict=True):
        member.opened(stream, partition)
    return Looks(member, monkeypatch)


def test_while_all_is_well_the_leaders_are_looked_at_every_five_seconds(looks: Looks) -> None:
    assert looks.run(3) == [0.0, 5.0, 10.0]
    assert looks.waits[:3] == [0.01] * 3


def test_while_a_partition_is_missing_they_are_looked_at_soon(looks: Looks) -> None:
    place = looks.subscriptions.places["t", 1]
    place.answered = False
    assert looks.run(4) == [0.0, 0.02, 0.06, 0.14]
    looks.at.clear()
    looks.subscriptions._stopping = False
    looks._began = looks.clock.now
    place.answered, place.address = True, None
    assert looks.run(2) == [0.0, 0.02]


def test_once_all_is_well_again_the_next_waits_are_short_again(looks: Looks) -> None:
    place = looks.subscriptions.places["t", 1]
    look, states = looks._look, iter([False, False, True, False, True])

    def looked() -> None:
        place.answered = next(states)
        look()

    looks.subscriptions._follow_leaders = looked  # type: ignore[method-assign]
    assert looks.run(5) == [0.0, 0.02, 0.06, 5.06, 5.08]


def test_a_new_topic_is_looked_at_at_once_and_a_failure_only_where_all_was_well(looks: Looks) -> None:
    def news(name: str) -> Callable[[], object]:
        return lambda: setattr(looks.subscriptions, name, True)

    looks.meanwhile = [news("_look"), news("_failed")]
    assert looks.run(3) == [0.0, 0.01, 0.02]
    looks.at.clear()
    looks.subscriptions._stopping = False
    looks._began = looks.clock.now
    looks.subscriptions.places["t", 1].answered = False
    looks.meanwhile = [news("_failed")]
    assert looks.run(2) == [0.0, 0.02]


def test_places_are_settled_while_it_waits(looks: Looks, member: Client) -> None:
    stream = member.stream(1)
    member.push(stream, 0, 0, 1)
    member.taken()
    looks.meanwhile = [member.subscriptions.queues["t"].done_with_last]
    looks.run(2)
    assert [[p.offset for p in some] for some in stream.take("settled")] == [[1]]


def test_nothing_is_said_on_a_stream_that_ended(client: Client) -> None:
    stream = client.stream(1)
    client.opened(stream, 0, 0)
    stream.over(None)
    stream.said.clear()
    for base in range(3):
        big(client, stream, base)  # what was on its way
    assert stream.said == []


def test_a_place_is_not_settled_on_a_stream_that_has_not_opened_it_yet(member: Client) -> None:
    stream = member.stream(1)
    member.opened(stream, 0, 0)
    member.push(stream, 0, 0, 2)
    member.taken()
    member.subscriptions.queues["t"].done_with_last()
    stream.over(None)
    member.look()
    member.subscriptions._settle()
    assert member.stream(1).take("settled") == []
    member.opened(member.stream(1), 0, 0)
    member.push(member.stream(1), 0, 0, 2)
    member.subscriptions._settle()
    assert [[p.offset for p in some] for some in member.stream(1).take("settled")] == [[2]]


def test_the_thread_is_started_once_and_does_not_keep_the_process(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.subscriptions, "_run", lambda: None)
    client.subscriptions.begin()
    thread = client.subscriptions._thread
    assert thread is not None
    assert thread.daemon
    client.subscriptions.begin()
    assert client.subscriptions._thread is thread
    thread.join()


def test_the_last_word_on_a_stream_is_said_once_and_nothing_behind_it(client: Client) -> None:
    session = client.subscriptions._sessions["b:1"]
    session.end()
    session.end()
    client.stream(1).said.clear()
    session.give_back(CREDIT)
    assert client.stream(1).last_words == 1
    assert client.stream(1).said == []


# ---------------------------------------------------------------- who is woken


def test_all_that_is_to_be_opened_wakes_the_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = Wakes(client.subscriptions._work, monkeypatch)
    view = client.connection.learn(topic_info(1, name="u"))
    assert wakes.by(lambda: client.subscriptions.add(view))
    assert not wakes.by(lambda: client.subscriptions.add(view))  # is subscribed to already
    assert not wakes.by(lambda: client.opened(client.stream(1), 0))
    assert wakes.by(lambda: client.opened(client.stream(2), 1, active=False, error=NotLeader("no longer")))
    assert wakes.by(lambda: client.stream(1).over(None))
    assert not wakes.by(lambda: client.stream(1).over(None))  # of a stream that was forgotten
    assert wakes.by(lambda: client.subscriptions.stop(Deadline(0), last_is_done=True))


def test_all_that_can_be_taken_or_ends_a_wait_wakes_who_waits_for_records(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes = Wakes(client.subscriptions.changed, monkeypatch)
    assert wakes.by(lambda: client.opened(client.stream(1), 0))
    assert wakes.by(lambda: client.push(client.stream(1), 0, 0, 1))
    assert wakes.by(lambda: client.subscriptions.fail("t", UnknownTopic("gone")))
    assert not wakes.by(lambda: client.subscriptions.fail("t", UnknownTopic("gone")))
    assert wakes.by(lambda: client.subscriptions.remove("t"))
    assert not wakes.by(lambda: client.subscriptions.remove("t"))
    assert wakes.by(lambda: client.subscriptions.stop(Deadline(0), last_is_done=True))


def test_a_topic_that_is_new_when_the_program_can_work_again_is_still_to_be_opened(client: Client) -> None:
    client.subscriptions._health = Health(lambda: True, lambda: None)
    client.subscriptions.suspended = client.subscriptions._look = True
    with client.subscriptions.changed:
        client.subscriptions._heed_health()
    assert not client.subscriptions.suspended
    assert client.subscriptions._look
