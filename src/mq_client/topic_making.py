"""Topics made many at once. `Admin` offers this as its method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.errors import InvalidRequest, InvalidSetting, TopicExists, TritonMQError
from mq_client.producing.classes import schema_of
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_to_bytes
from mq_protocol.error_messages import from_wire
from mq_protocol.names import check_new_topic_name, parse_settings
from mq_protocol.sql.ddl import check_column_names

AT_ONCE: Final = 100
"""So many are asked for in one request."""


SPREAD_MS: Final = 5_000.0
"""How long a new topic's name may take to reach every broker that answers."""


class TopicMade(NamedTuple):
    """What became of one topic of many: without an `error` it can be written to and read from. `was_there`: it was
    there before, and stays as it was."""

    name: str
    error: TritonMQError | None = None
    was_there: bool = False


class TopicMaker:
    """A part of `Admin`, which gives it its connection."""

    _connection: Connection
    _timeout_ms: float

    def create_topics(
        self,
        names: Iterable[str],
        *,
        partitions: int = 1,
        replicas: int = 1,
        schema: pa.Schema | str | type | None = None,
        if_not_exists: bool = False,
        **settings: object,
    ) -> list[TopicMade]:
        """Make topics that are alike but for their names, each as `create_topic` does. One that is refused keeps no
        other back: what became of each is in the answer, in the order of the names. To ask again with
        `if_not_exists=True` makes those that were not made.

        `timeout_ms` is for each hundred of them. Raises `InvalidTopicName`, `InvalidSetting`, and `InvalidRequest` for
        a name that is given twice, before any is made.
        """
        if isinstance(names, str):
            raise InvalidRequest(f"names={names!r} is one name: give a list of them, or use create_topic")
        wanted = list(names)
        for name in wanted:
            check_new_topic_name(name)
        if len(set(wanted)) < len(wanted):
            twice = sorted(name for name in set(wanted) if wanted.count(name) > 1)
            raise InvalidRequest(f"topics {', '.join(twice[:10])} are given twice: give each name once")
        if not 1 <= partitions <= limits.PARTITIONS_PER_TOPIC_MAX:
            raise InvalidSetting(
                f"partitions={partitions} is out of range: give 1 to {limits.PARTITIONS_PER_TOPIC_MAX}"
            )
        given = {setting: str(value) for setting, value in settings.items()}
        parse_settings(given, replicas)
        stored = None if schema is None else schema_of(schema)
        check_column_names(stored or ())
        alike = pb.CreateTopicRequest(
            partitions=partitions,
            replicas=replicas,
            schema=b"" if stored is None else schema_to_bytes(stored),
            settings=given,
        )
        made: list[TopicMade] = []
        for some in _pieces(wanted, alike):
            deadline = Deadline(self._timeout_ms)
            try:
                made += self._make(some, alike, if_not_exists, deadline)
            except TritonMQError as error:
                made += [TopicMade(name, error) for name in some]
        return made

    def _make(
        self, names: Sequence[str], alike: pb.CreateTopicRequest, if_not_exists: bool, deadline: Deadline
    ) -> list[TopicMade]:
        there = {topic.name for topic in self._connection.metadata(deadline, topics=names).topics}
        request, unclear = pb.CreateTopicsRequest(), list[str]()
        for name in names:
            if name not in there:
                request.topics.add(name=name).MergeFrom(alike)
        errors: dict[str, TritonMQError] = {}
        if request.topics:
            errors = self._ask(request, deadline, unclear)
        taken = [name for name, error in errors.items() if isinstance(error, TopicExists)]
        if taken and unclear:  # made by the attempt whose answer was lost, unless somebody else was as quick
            found = self._connection.metadata(deadline, topics=taken).topics
            for topic in found:
                if len(topic.partitions) == alike.partitions and topic.settings == alike.settings:
                    del errors[topic.name]
        last = next((topic.name for topic in reversed(request.topics) if topic.name not in errors), None)
        if last is not None:  # a broker that has read of it has read of those before
            self._wait_until_known(last, deadline)
        return [self._became(name, there, errors, if_not_exists) for name in names]

    def _ask(self, request: pb.CreateTopicsRequest, deadline: Deadline, unclear: list[str]) -> dict[str, TritonMQError]:
        """Why topics were not made."""
        answer = self._connection.ask_any("CreateTopics", request, pb.CreateTopicsResponse, deadline, unclear)
        return {told.name: from_wire(told.error) for told in answer.topics if told.HasField("error")}

    def _wait_until_known(self, name: str, deadline: Deadline, partitions: int = 0, schema: bytes = b"") -> None:
        """Until each broker that answers knows the topic, its partitions and columns: the next request may go to any of
        them."""
        limit = deadline.at_most(SPREAD_MS)
        for address in self._connection.addresses():
            request = pb.MetadataRequest(topics=[name])
            while not limit.expired:
                try:
                    answer = self._connection.ask(address, "Metadata", request, pb.MetadataResponse, limit)
                except TritonMQError:
                    break
                if any(len(told.partitions) >= partitions and schema in (b"", told.schema) for told in answer.topics):
                    break
                limit.pause(0.01)

    @staticmethod
    def _became(name: str, there: set[str], errors: dict[str, TritonMQError], if_not_exists: bool) -> TopicMade:
        error = errors.get(name)
        if name in there or isinstance(error, TopicExists):
            if if_not_exists:
                return TopicMade(name, was_there=True)
            error = TopicExists(
                f"topic {name!r} exists already: choose another name, delete it first, or leave it as it is "
                "(if_not_exists=True, --if-not-exists)"
            )
        return TopicMade(name, error)


def _pieces(names: Sequence[str], alike: pb.CreateTopicRequest) -> Iterator[Sequence[str]]:
    """As many at once as one request may name."""
    by_partitions = limits.PARTITIONS_PER_TOPIC_MAX // alike.partitions
    by_bytes = limits.REQUEST_BYTES_MAX // (alike.ByteSize() + 2 * limits.NAME_BYTES_MAX)
    count = max(1, min(AT_ONCE, by_partitions, by_bytes))
    for first in range(0, len(names), count):
        yield names[first : first + count]
