"""The fixtures in suites of their own, as users have them: pytest in a process of its own, the plugin as installed."""

from __future__ import annotations

import re

import pytest

from mq_client import Admin
from tests import switch

pytest_plugins = "pytester"

pytestmark = pytest.mark.timeout(400)

ROOM_S = 300
"""For a suite that starts brokers on a busy machine."""

RECORDS = """
from mq_client import Producer, Reader

seen = []


def test_records_come_back(tritonmq, tritonmq_topic):
    assert tritonmq.create_topic(tritonmq_topic, partitions=2) == tritonmq_topic
    assert tritonmq.admin.describe_topic(tritonmq_topic).settings["durability"] == "memory"
    with Producer(tritonmq.bootstrap) as producer:
        producer.publish(tritonmq_topic, "one", partition=1).result(30)
    with Reader(tritonmq.bootstrap) as reader:
        assert [batch.column("value").to_pylist() for batch in reader.read(tritonmq_topic, 1, 0, 1)] == [[b"one"]]
    seen.append((tritonmq_topic, tritonmq.bootstrap))


def test_the_broker_is_the_same_and_the_name_another(tritonmq, tritonmq_topic):
    [(name, bootstrap)] = seen
    assert name != tritonmq_topic
    assert bootstrap == tritonmq.bootstrap
    assert name in tritonmq.admin.list_topics()


def test_a_topic_needs_no_name_and_has_the_settings_that_it_is_given(tritonmq):
    names = {tritonmq.create_topic(schema="n long", durability="os") for _ in range(2)}
    assert len(names) == 2
    for name in names:
        assert tritonmq.admin.describe_topic(name).settings["durability"] == "os"
"""

KILLED = """
import pytest
from mq_client import Producer


def test_writes_go_on_when_a_broker_is_killed(tritonmq_cluster):
    topic = tritonmq_cluster.create_topic(partitions=3, durability="os")
    tritonmq_cluster.kill(1)
    with Producer(tritonmq_cluster.bootstrap) as producer:
        for number in range(3):
            producer.publish(topic, "x", partition=number).result(60)
    with pytest.raises(ValueError, match="there is no broker 4: the ids are 1, 2, 3"):
        tritonmq_cluster.kill(4)


def test_it_is_whole_again_after_that_test(tritonmq_cluster):
    assert tritonmq_cluster.create_topic(partitions=3)
    tritonmq_cluster.kill(3)
    tritonmq_cluster.restart(3)
    assert tritonmq_cluster.create_topic()
"""

IMPORTED = """
import sys


def test_nothing_is_imported(request):
    ours = {name.partition(".")[0] for name in sys.modules if name.startswith("mq_")}
    assert ours == {"mq_pytest"}
    assert not {"grpc", "pyarrow", "mq_pytest.running"} & sys.modules.keys()
    assert request.config.getoption("--tritonmq-bootstrap") == ""
"""


def run(pytester: pytest.Pytester, text: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(text)
    pytester.makeconftest(switch.words())
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rs", *arguments, timeout=ROOM_S)


def test_a_suite_that_uses_no_fixture_imports_nothing(pytester: pytest.Pytester) -> None:
    run(pytester, IMPORTED).assert_outcomes(passed=1)


@pytest.mark.cluster
def test_a_suite_has_a_broker_of_its_own_and_a_cluster_whose_brokers_it_kills_and_finds_again(
    pytester: pytest.Pytester,
) -> None:
    run(pytester, RECORDS + KILLED).assert_outcomes(passed=5)


def test_brokers_that_run_already_are_used_and_not_killed(pytester: pytest.Pytester, bootstrap: str) -> None:
    found = run(pytester, RECORDS + KILLED, "--tritonmq-bootstrap", bootstrap)
    found.assert_outcomes(passed=3, skipped=2)
    found.stdout.re_match_lines([".*tritonmq_cluster kills brokers.*run it without.*"])
    assert not re.search("LocalCluster", found.stdout.str())
    with Admin(bootstrap) as admin:
        assert [name for name in admin.list_topics() if name.startswith("test-")], "they are left there"
