"""The settings of queue groups, as a broker has read them last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.queues.declared import Declared
from mq_protocol.errors import IncompatibleVersion, UnknownQueue

SHELL: Any = SimpleNamespace(level=2, partitions=list)


def partition(number: int, **settings: dict[str, str]) -> Any:
    """Of topic `t<number>`, whose groups have these settings."""
    queues = {group: SimpleNamespace(life=1, start_us=0, settings=each) for group, each in settings.items()}
    spec = SimpleNamespace(name=f"t{number}", topic_id=f"id{number}", queues=queues)
    machine = SimpleNamespace(cursors={})
    return SimpleNamespace(
        name=f"t{number}-0", topic=SimpleNamespace(spec=spec), replica=SimpleNamespace(machine=machine)
    )


def test_nothing_is_kept_of_topics_that_are_gone_or_have_no_groups_any_more() -> None:
    declared = Declared(SHELL)
    for number in range(100):
        assert declared.get(partition(number, g={"lease_ms": "5s"}), "g").settings.lease_ms == 5_000
    declared.keep({"id7", "id8"})
    assert sorted(declared._read) == ["id7", "id8"]
    assert declared.of(partition(7)) == {}
    assert sorted(declared._read) == ["id8"]


def test_settings_are_read_again_once_they_have_changed() -> None:
    declared = Declared(SHELL)
    before, after = partition(1, g={"filter": "n > 1"}), partition(1, g={"filter": "n > 2"})
    assert declared.of(before) is declared.of(before), "and not each time"
    assert [declared.get(each, "g").settings.filter for each in (before, after)] == ["n > 1", "n > 2"]


def test_a_group_whose_settings_only_a_newer_release_knows_leaves_the_others_alone() -> None:
    declared = Declared(SHELL)
    mixed = partition(1, new={"of_the_future": "1"}, old={})
    assert list(declared.of(mixed)) == ["old"]
    with pytest.raises(IncompatibleVersion, match="upgrade this broker"):
        declared.get(mixed, "new")
    with pytest.raises(UnknownQueue, match="did you mean 'old'"):
        declared.get(mixed, "odl")
