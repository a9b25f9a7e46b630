"""The copy of the list of topics, reading by reading. The coordination service is the test: it says what changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mq_broker.broker.metadata import topics
from mq_broker.broker.metadata.topics import SWEEP_S, Topic, Topics, first_state
from mq_broker.coordination import editing
from mq_broker.coordination.interface import TopicChanges, TopicSpec
from mq_broker.core.messages import CasOutcome, NodeState
from mq_protocol.errors import CoordinationUnavailable, InvalidTopicName, OutcomeUnknown, UnknownTopic
from tests.coroutines import virtual_time

A = TopicSpec("a", "id-a", ((1,), (1,)))
B = TopicSpec("b", "id-b", ((1,),))


class Service:
    """Answers each reading with the next of `changes`, then with nothing new. `heard`: what the broker was told of
    each."""

    def __init__(self) -> None:
        self.changes: list[TopicChanges | CoordinationUnavailable] = []
        self.versions: list[int] = []
        self.heard: list[tuple[list[str], list[str] | None]] = []
        self.document: tuple[int, TopicSpec] | None = (4, A)
        self.outcomes: list[CasOutcome] = []
        self.updates: list[tuple[int, TopicSpec, tuple[NodeState, ...]]] = []
        self.reads = asyncio.Event()
        service: Any = self
        self.topics = Topics(service, self._hear)

    def _hear(self, known: dict[str, Topic], changed: Any) -> None:
        self.heard.append((sorted(known), None if changed is None else sorted(changed)))

    async def topic_changes(self, version: int) -> TopicChanges:
        self.versions.append(version)
        self.reads.set()
        await asyncio.sleep(0)
        answer = self.changes.pop(0) if self.changes else TopicChanges(version, False, {})
        if isinstance(answer, CoordinationUnavailable):
            raise answer
        return answer

    async def read_topic(self, _name: str) -> tuple[int, TopicSpec] | None:
        return self.document

    async def update_topic(
        self, version: int, spec: TopicSpec, states: tuple[NodeState, ...]
    ) -> tuple[CasOutcome, int]:
        self.updates.append((version, spec, states))
        return (self.outcomes.pop(0) if self.outcomes else CasOutcome.DONE), version + 1

    async def read(self, version: int, *present: TopicSpec, whole: bool = False, **fields: Any) -> None:
        self.changes.append(TopicChanges(version, whole, {spec.name: spec for spec in present}, **fields))
        await self.topics.refresh()

    @property
    def names(self) -> list[str]:
        return [topic.spec.name for topic in self.topics.all()]


@pytest.fixture
def service() -> Service:
    return Service()


@virtual_time
async def test_what_changed_is_told_by_id_and_the_rest_is_kept(service: Service) -> None:
    await service.read(1, B, A, whole=True)
    await service.read(2)
    before = service.topics.find("a")
    wider = replace(B, assignment=((1,), (1,)))
    await service.read(3, wider)
    await service.read(4, A)
    await service.read(5, gone=("a",))
    await service.read(6, gone=("a",))
    assert service.versions == [-1, 1, 2, 3, 4, 5]
    assert service.heard == [
        (["id-a", "id-b"], None),
        (["id-a", "id-b"], []),
        (["id-a", "id-b"], ["id-b"]),
        (["id-a", "id-b"], []),
        (["id-b"], ["id-a"]),
        (["id-b"], []),
    ]
    assert service.names == ["b"]
    assert before is not None
    assert service.topics.find("a") is None


@virtual_time
async def test_a_reading_of_all_topics_leaves_out_what_is_gone(service: Service) -> None:
    await service.read(1, A, B, whole=True)
    known = service.topics.find("b")
    await service.read(2, B, whole=True)
    assert service.names == ["b"]
    assert service.topics.find("b") is known
    assert service.heard[-1] == (["id-b"], None)
    assert await service.topics.exists("b", 0)
    assert not await service.topics.exists("a", 0)


@virtual_time
async def test_a_topic_that_was_made_again_is_another_and_both_are_told(service: Service) -> None:
    await service.read(1, A, whole=True)
    await service.read(2, replace(A, topic_id="id-2"))
    assert service.heard[-1] == (["id-2"], ["id-2", "id-a"])
    assert [topic.spec.topic_id for topic in service.topics.all()] == ["id-2"]


@virtual_time
async def test_what_an_earlier_state_lacks_stays_however_often_that_state_is_read_and_changed(service: Service) -> None:
    await service.read(9, A, B, whole=True)
    for version in (5, 5, 6, 10):
        await service.read(version, A, whole=True)
        assert service.names == ["a", "b"]
    assert not any(changed == ["id-b"] for _, changed in service.heard)


@virtual_time
async def test_a_topic_that_an_earlier_state_has_under_a_former_id_stays_as_it_is(service: Service) -> None:
    await service.read(9, B, whole=True)
    for version in (5, 6):
        await service.read(version, replace(B, topic_id="id-former"), whole=True)
        assert [topic.spec.topic_id for topic in service.topics.all()] == ["id-b"]
    await service.read(7, replace(B, topic_id="id-again"))
    assert [topic.spec.topic_id for topic in service.topics.all()] == ["id-again"]


@pytest.mark.parametrize("whole", [True, False])
@virtual_time
async def test_what_an_earlier_state_of_the_service_lacks_is_not_taken_for_deleted(
    service: Service, whole: bool
) -> None:
    await service.read(5, A, B, whole=True)
    await service.read(4, A, whole=whole, gone=() if whole else ("b",))
    assert service.names == ["a", "b"]
    await service.read(5, gone=("b",))
    assert service.names == ["a"], "that is a later word"
    await service.read(5, gone=("a",))
    assert service.names == [], "and so is one of the same state"


@pytest.mark.parametrize("whole", [True, False])
@virtual_time
async def test_a_topic_whose_document_cannot_be_read_stays_as_it_was_and_one_that_was_never_read_is_said_to_be_so(
    service: Service, whole: bool
) -> None:
    await service.read(1, A, whole=True)
    await service.read(2, whole=whole, unreadable=("a", "b"))
    assert service.names == ["a"]
    with pytest.raises(CoordinationUnavailable, match="'b' cannot be read"):
        await service.topics.get("b")
    for name in ("a", "b"):
        with pytest.raises(CoordinationUnavailable):
            await service.topics.exists(name, 0)
    await service.read(3, B)
    assert (await service.topics.get("b")).partitions == 1
    assert await service.topics.exists("b", 0), "it can be read now"
    with pytest.raises(CoordinationUnavailable):
        await service.topics.exists("a", 0)
    await service.read(4, gone=("a",))
    assert not await service.topics.exists("a", 0)


@virtual_time
async def test_whether_a_partition_exists_is_asked_of_the_service_each_time(service: Service) -> None:
    await service.read(1, A, whole=True)
    reads = len(service.versions)
    exists = service.topics.exists
    assert [await exists("a", number) for number in (-1, 0, 1, 2)] == [False, True, True, False]
    assert [await exists("a", 0, topic_id) for topic_id in ("", "id-a", "id-b")] == [True, True, False]
    assert not await exists("b", 0)
    assert len(service.versions) == reads + 8
    strange = replace(B, settings={"unheard_of": "1"})
    service.changes = [TopicChanges(2, False, {"b": strange})]
    assert await exists("b", 0), "this version cannot read it, and it is there"


@virtual_time
async def test_a_topic_that_this_version_cannot_read_is_told_once_until_it_changes(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    strange = replace(A, settings={"unheard_of": "1"})
    for version, spec in enumerate((strange, strange, A, strange, replace(strange, settings={"unheard_of": "2"}))):
        await service.read(version, spec)
    assert sum("topic 'a' cannot be read by this version" in words for words in caplog.messages) == 3
    assert service.topics.find("a") is not None


# ---------------------------------------------------------------- one topic


@virtual_time
async def test_a_name_that_is_not_known_causes_one_reading_in_a_while_and_one_that_cannot_be_causes_none(
    service: Service,
) -> None:
    with pytest.raises(InvalidTopicName):
        await service.topics.get("a/b")
    assert service.versions == []
    for _ in range(5):
        with pytest.raises(UnknownTopic):
            await service.topics.get("nothing")
    assert len(service.versions) == 1
    await asyncio.sleep(topics.REFRESH_S_MIN)
    service.changes = [TopicChanges(1, False, {"a": A})]
    assert (await service.topics.get("a")).spec is A
    assert (await service.topics.get("a")).spec is A
    assert len(service.versions) == 2


@virtual_time
async def test_a_reader_that_knows_a_topics_id_is_given_that_topic_or_told_that_it_is_gone(
    service: Service,
) -> None:
    await service.read(1, A, whole=True)
    reads = len(service.versions)
    for topic_id in ("", "id-a"):
        assert (await service.topics.meant("a", topic_id)).spec is A
    assert len(service.versions) == reads
    again = replace(A, topic_id="id-2")
    service.changes = [TopicChanges(2, False, {"a": again})]
    assert (await service.topics.meant("a", "id-2")).spec is again
    with pytest.raises(UnknownTopic, match="made again"):
        await service.topics.meant("a", "id-a")


@virtual_time
async def test_who_asks_during_a_reading_shares_the_next_one(service: Service) -> None:
    await asyncio.gather(*(service.topics.refresh() for _ in range(10)))
    assert len(service.versions) == 2
    await service.topics.refresh()
    assert len(service.versions) == 3
    service.changes = [CoordinationUnavailable("away")]
    with pytest.raises(CoordinationUnavailable):
        await service.topics.refresh()
    await service.topics.refresh()
    assert len(service.versions) == 5


@virtual_time
async def test_who_looks_for_one_topic_is_content_with_the_reading_under_way_if_that_finds_it(service: Service) -> None:
    service.changes = [TopicChanges(1, True, {"a": A})]
    under_way = asyncio.create_task(service.topics.refresh())
    await service.reads.wait()
    await service.topics.refresh(until="id-a")
    assert service.versions == [-1]
    await under_way
    await service.topics.refresh(until="id-b")
    assert service.versions == [-1, 1], "it is not known yet"


def wider(spec: TopicSpec) -> TopicSpec:
    return replace(spec, assignment=(*spec.assignment, (3, 2))[:3])


@virtual_time
async def test_an_edit_writes_what_is_new_over_the_version_that_it_was_made_from(service: Service) -> None:
    await service.read(1, A, whole=True)
    service.outcomes = [CasOutcome.REFUSED, CasOutcome.UNKNOWN]
    await service.topics.edit("a", wider)
    new = NodeState(None, 0, ((2, ""), (3, "")), 0, "")
    assert service.updates == [(4, wider(A), (new,))] * 3
    assert first_state((3, 2)) == new
    service.updates.clear()
    await service.topics.edit("a", lambda spec: spec)
    assert service.updates == []
    service.document = None
    with pytest.raises(UnknownTopic, match="deleted meanwhile"):
        await service.topics.edit("a", wider)
    service.document = (4, A)
    service.outcomes = [CasOutcome.REFUSED] * 100
    with pytest.raises(OutcomeUnknown, match="kept changing"):
        await service.topics.edit("a", wider)
    assert len(service.updates) == editing.ATTEMPTS_MAX


@virtual_time
async def test_the_list_is_read_on_a_hint_now_and_then_without_one_and_again_after_a_failure() -> None:
    service, changed = Service(), asyncio.Event()
    following = asyncio.create_task(service.topics.following(changed).run())
    await asyncio.sleep(SWEEP_S / 2)
    assert service.versions == []
    service.changes = [CoordinationUnavailable("away")]
    changed.set()
    await asyncio.sleep(SWEEP_S / 2)
    assert len(service.versions) == 2
    await asyncio.sleep(SWEEP_S)
    assert len(service.versions) == 3
    following.cancel()
    await asyncio.wait({following})
