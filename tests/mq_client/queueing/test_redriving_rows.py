"""How letters of one batch are divided, sent and refused. No broker: the test says what fits and what comes of it."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mq_client.errors import InvalidRequest, LeaseLost, OutcomeUnknown, Overloaded, UnknownTopic
from mq_client.producing.batches import records_to_batch
from mq_client.queueing.redriving import LATER_MS, Order, _Redrive
from mq_protocol.queues.dead_letters import HEADERS
from tests.mq_client.cluster.scripted import Clock


class Sent:
    """In the place of `Outputs`: takes so many rows, and none whose value is `bad`."""

    def __init__(self, rows_max: int) -> None:
        self.auto_create = True
        self.rows: list[tuple[str, bytes, int | None]] = []
        self._rows_max = rows_max

    def publish_batch(self, topic: str, table: pa.RecordBatch, *, partition: int | None) -> None:
        assert not self.auto_create, "a topic that was deleted is not to come back"
        values = table.column("value").to_pylist()
        if len(self.rows) + len(values) > self._rows_max:
            raise Overloaded("that is too much")
        if b"bad" in values:
            raise InvalidRequest("it does not fit")
        self.rows += [(topic, value, partition) for value in values]


class Letters:
    """In the place of `LeasedBatch`: letters of partition 0, from offset 10 on. Each is `(value, topic)`."""

    def __init__(self, *letters: tuple[str, str]) -> None:
        self.partition = 0
        self.offsets = np.arange(10, 10 + len(letters))
        headers = [[(HEADERS["topic"], topic.encode()), (HEADERS["partition"], b"1")] for _, topic in letters]
        values = [value.encode() for value, _ in letters]
        self.rows = records_to_batch([None] * len(letters), values, headers, [1] * len(letters))
        self.said: list[tuple[str, list[int], object]] = []
        self.acks: list[list[tuple[str, bytes, int | None]]] = []
        self.end: BaseException | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def release(self, mask: Any, *, delay_ms: float) -> None:
        self.said.append(("release", np.flatnonzero(mask).tolist(), delay_ms))

    def reject(self, mask: Any, reason: str) -> None:
        self.said.append(("reject", np.flatnonzero(mask).tolist(), reason))

    def ack(self, mask: Any, *, outputs: Sent) -> Future[None]:
        self.said.append(("ack", np.flatnonzero(mask).tolist(), None))
        self.acks.append(outputs.rows)
        future: Future[None] = Future()
        if isinstance(self.end, TimeoutError):
            return future  # nobody ends it
        if self.end is not None:
            future.set_exception(self.end)
        else:
            future.set_result(None)
        return future


class Run:
    """One run of `redrive` without its queue. Topics `a` and `b` have two partitions, `gone` is not there."""

    def __init__(
        self,
        *,
        rows_max: int = 100,
        end: int = 1_000,
        rate: float | None = None,
        to: str | None = None,
    ) -> None:
        self.clock = Clock()
        self.asked: list[str] = []
        self.sent: list[int] = []
        order = Order("dead", to, "g", False, rate, None, self.sent.append)
        connection: Any = SimpleNamespace(topic=self._topic)
        self.redrive = _Redrive(connection, order, {0: end}, 1.0, self.clock.monotonic, self.clock.sleep)
        self._queue: Any = SimpleNamespace(outputs=lambda: Sent(rows_max))

    def take(self, letters: Letters) -> None:
        batch: Any = letters
        self.redrive._take(self._queue, batch)

    def _topic(self, name: str, _deadline: object) -> Any:
        self.asked.append(name)
        if name == "gone":
            raise UnknownTopic("topic 'gone' is unknown")
        return SimpleNamespace(name=name, partitions=2, schema=SimpleNamespace(names=[]))

    @property
    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        return dict(self.redrive._sent), dict(self.redrive._refused)


@pytest.mark.parametrize("rows_max", range(1, 8))
def test_what_is_too_much_for_one_ack_is_sent_by_several_and_each_letter_once(rows_max: int) -> None:
    run = Run(rows_max=rows_max)
    letters = Letters(*((str(number), "ab"[number % 3 == 0]) for number in range(7)))
    run.take(letters)
    values = [int(value) for rows in letters.acks for _, value, _ in rows]
    assert values == [0, 3, 6, 1, 2, 4, 5], "by topic, and in their order"
    for rows, (_, settled, _) in zip(letters.acks, letters.said, strict=True):
        assert sorted(int(value) for _, value, _ in rows) == settled, "what is settled is what was sent"
        assert 0 < len(rows) <= rows_max
    assert run.counts == ({"a": 4, "b": 3}, {})
    assert sum(run.sent) == 7


@pytest.mark.parametrize("bad", [{0}, {6}, {2, 3}, {0, 3, 6}, set(range(7))])
def test_a_letter_that_does_not_fit_is_left_with_the_reason_and_the_others_are_sent(bad: set[int]) -> None:
    run = Run()
    letters = Letters(*(("bad" if number in bad else str(number), "a") for number in range(7)))
    run.take(letters)
    good = [number for number in range(7) if number not in bad]
    wanted: list[tuple[str, list[int], object]] = [("ack", good, None)] if good else []
    assert letters.said == [*wanted, ("reject", sorted(bad), "it does not fit")]
    assert run.counts == ({"a": len(good)} if good else {}, {"it does not fit": len(bad)})
    assert run.sent == ([len(good)] if good else [])


def test_letters_of_a_topic_that_is_gone_or_of_none_are_left_with_the_reason() -> None:
    run = Run()
    letters = Letters(("0", "gone"), ("1", ""), ("2", "dead"), ("3", "gone"), ("4", "a"), ("5", "no/name"))
    run.take(letters)
    reasons = {tuple(rows): str(why) for word, rows, why in letters.said if word == "reject"}
    assert reasons[0, 3] == "topic 'gone' is unknown"
    assert "does not say which topic" in reasons[1,]
    assert "came from this topic itself" in reasons[2,]
    assert "no/name" in reasons[5,]
    assert [said for said in letters.said if said[0] == "ack"] == [("ack", [4], None)]
    assert run.asked.count("gone") == 1


def test_what_came_later_is_let_alone_for_a_while() -> None:
    for end, early in ((10, 0), (11, 1), (12, 2), (13, 3), (14, 3)):
        run, letters = Run(end=end), Letters(("0", "a"), ("1", "a"), ("2", "a"))
        run.take(letters)
        later: list[tuple[str, list[int], object]] = [("release", list(range(early, 3)), LATER_MS)]
        sent: list[tuple[str, list[int], object]] = [("ack", list(range(early)), None)]
        assert letters.said == [*(later if early < 3 else []), *(sent if early else [])]


def test_what_another_member_has_is_not_counted_and_what_is_not_known_ends_the_run() -> None:
    run, letters = Run(), Letters(("0", "a"))
    letters.end = LeaseLost("another has it")
    run.take(letters)
    assert (run.counts, run.sent) == (({}, {}), [])
    letters.end = TimeoutError()
    with pytest.raises(OutcomeUnknown, match="whether 1 letters were sent is not known"):
        run.take(letters)
    assert (run.counts, run.sent) == (({}, {}), [])


def test_a_rate_is_kept_whatever_the_batches() -> None:
    run = Run(rate=10)
    began = run.clock.now
    for count, after_s in ((5, 0.0), (1, 0.5), (2, 0.6)):
        run.take(Letters(*[("x", "a")] * count))
        assert run.clock.now == pytest.approx(began + after_s)
    run.clock.now = began + 5.0
    run.take(Letters(("x", "a")))
    assert run.clock.now == began + 5.0, "what was not sent in time is not made up for at once"
    run.take(Letters(("x", "a")))
    assert run.clock.now == pytest.approx(began + 5.1)
