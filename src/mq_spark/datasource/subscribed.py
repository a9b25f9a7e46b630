"""What a source reads, as the brokers have it: the topics that are meant, whether they fit, and where their logs begin
and end.

Under `subscribePattern` topics are looked for while the query runs. What follows from the bounds is positions.py's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from pyspark.sql.types import StructType

from mq_protocol.errors import InvalidSetting, TritonMQError, UnknownTopic
from mq_protocol.sql.row_filter import parse_filter
from mq_spark.datasource.cluster import Cluster
from mq_spark.datasource.schemas import Projection, Topic
from mq_spark.planning.offsets import Offsets
from mq_spark.planning.option_values import AtTime, StartingAt
from mq_spark.planning.options import SourceOptions
from mq_spark.planning.positions import AllBounds, resolved, times_wanted

log = logging.getLogger(__name__)

SEARCH_SECONDS: Final = 2.0
"""How often topics are looked for under a pattern: one question that any broker answers from memory."""

_GONE_WITHIN_SECONDS: Final = 10.0
"""Brokers learn of a topic's end at their own pace: for so long one may still list what another no longer knows."""

_LOOKED_AGAIN_SECONDS: Final = 0.2


def topics_meant(cluster: Cluster, options: SourceOptions, *, or_none: bool = False) -> list[Topic]:
    """The topics that the options name or match now, and that have the partitions assigned.

    Raises `UnknownTopic`, `InvalidSetting` (also for a pattern that matches nothing), `Unreachable`. `or_none`: a
    pattern that matches nothing is no error, nor is a topic that is gone where losses are allowed.
    """
    meant = options.subscription
    names = meant.topics
    if meant.pattern is not None:
        names = meant.matching(cluster.topic_names())
        if not names and not or_none:
            raise InvalidSetting(
                f"subscribePattern={meant.pattern!r} matches no topic, and so there is nothing to take columns from: "
                "create a topic first, or give .schema(...)"
            )
    topics = []
    for name in names:
        try:
            topic = cluster.topic(name)
        except UnknownTopic:
            if or_none and looks_for_topics(options):
                log.warning("topic %s is not there: it is read as soon as it is", name)
                continue
            raise
        meant.partitions(topic.name, topic.partitions)
        topics.append(topic)
    return topics


def looks_for_topics(options: SourceOptions) -> bool:
    """Whether topics may come and go while a stream runs: by a pattern, or since losses are allowed."""
    return options.subscription.pattern is not None or not options.fail_on_data_loss


def check_topic(topic: Topic, options: SourceOptions, wanted: StructType) -> None:
    """What does not fit is an error on the driver, not in a task. Raises `SchemaMismatch`, `InvalidSetting`."""
    Projection(topic, wanted)
    check_filter(topic, options)


def check_filter(topic: Topic, options: SourceOptions) -> None:
    """Raises `InvalidSetting` if the option filter cannot be carried out on the topic."""
    if options.filter and not topic.typed:
        raise InvalidSetting(
            f"filter needs a topic with columns of its own, and {topic.name} holds records: leave it out, and use "
            ".filter(...) on the DataFrame"
        )
    if options.filter:
        parse_filter(options.filter, topic.schema)


def resolve(cluster: Cluster, name: str, at: StartingAt, bounds: AllBounds, *, fail: bool) -> Offsets:
    """The offsets that an option means now, times looked up. Raises `InvalidSetting`."""
    found = cluster.find_times(times_wanted(at, bounds)) if isinstance(at, AtTime) else None
    return resolved(name, at, bounds, found, fail=fail)


class Subscribed:
    """A running stream's, on the driver. Owns the watch on the topics and, where topics may come and go, the thread
    that looks for them.

    `topic_ids`: of all topics that have been read, as last heard.
    """

    def __init__(self, cluster: Cluster, options: SourceOptions, wanted: StructType) -> None:
        self._cluster = cluster
        self._options = options
        self._wanted = wanted
        self._looks = looks_for_topics(options)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._error: TritonMQError | None = None
        topics = topics_meant(cluster, options, or_none=True)
        for topic in topics:
            check_topic(topic, options, wanted)
        self.topic_ids = {topic.name: topic.topic_id for topic in topics}
        self._names = tuple(self.topic_ids)
        self._watch = cluster.watch(self._names, options.subscription.assigned)
        if self._looks:
            threading.Thread(target=self._run, name="tritonmq-topics", daemon=True).start()

    def bounds(self) -> AllBounds:
        """As the brokers have pushed them. Asks nobody, but for the first time. Raises `UnknownTopic`, and
        `SchemaMismatch` for a topic that the pattern has found and that does not fit.
        """
        if self._error is not None:
            raise self._error
        return self._known(self._watch.bounds)

    def asked(self) -> AllBounds:
        """Asked now: which topics there are, and where the leaders have their ends."""
        if self._looks:
            self.search()
        return self._known(lambda: self._cluster.bounds(self._names, self._options.subscription.assigned))

    def _known(self, ask: Callable[[], AllBounds]) -> AllBounds:
        """What is asked about the topics that are there; those that were made again are checked first."""
        deadline = time.monotonic() + min(self._options.timeout_ms / 1000, _GONE_WITHIN_SECONDS)
        while True:
            try:
                bounds = ask()
            except UnknownTopic:
                if not self._looks or time.monotonic() > deadline:
                    raise
            else:
                for name, topic_id in self._cluster.topic_ids(bounds).items():
                    if self.topic_ids.get(name) != topic_id:
                        self._found(name)
                return bounds
            # A topic has gone: no error here, but a loss if its rows are still wanted
            self.search(again=True)
            time.sleep(_LOOKED_AGAIN_SECONDS)

    def search(self, *, again: bool = False) -> None:
        """Look for the topics that are meant, and read those that there are. `again`: begin to watch them anew.
        Raises `SchemaMismatch`, `Unreachable`, …
        """
        with self._lock:  # the thread that looks, or who has missed a topic
            existing = self._cluster.topic_names()
            names = tuple(name for name in self._options.subscription.matching(existing) if name in existing)
            if names == self._names and not again:
                return
            self._names = tuple(name for name in names if name in self.topic_ids or self._found(name))
            self._watch.topics(self._names)

    def _found(self, name: str) -> bool:
        """Whether the topic is still there, and then fits."""
        try:
            topic = self._cluster.topic(name)
        except UnknownTopic:
            return False
        check_topic(topic, self._options, self._wanted)
        log.info("topic %s is read from now on", name)
        self.topic_ids[name] = topic.topic_id
        return True

    def close(self) -> None:
        self._stopping.set()
        self._watch.close()

    def _run(self) -> None:
        while not self._stopping.wait(SEARCH_SECONDS):
            try:
                self.search()
            except TritonMQError as error:
                if not error.retriable:
                    self._error = error  # told by the next question that Spark asks
                    return
                log.info("topics cannot be listed at the moment: %s", error)
