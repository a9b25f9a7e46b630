"""The switch of tests/switch.py: a sample of what `make test-secure` runs, and the table of both runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.switch import ROOT, VARIABLE, plain_text
from tests.switch_table import read, table

SAMPLE = "tests/cluster/test_queues.py::test_a_killed_leader_charges_nobody_and_what_was_settled_does_not_come_again"
"""A queue of three brokers whose leader is killed."""


@pytest.mark.cluster
@plain_text("it turns the switch on")
def test_a_sample_passes_over_tls_and_with_rights() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", SAMPLE],
        env={**os.environ, VARIABLE: "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout[-5_000:]
    last = done.stdout.strip().splitlines()[-1]
    assert re.match(r"\d+ passed in", last), "nothing is left out"


OFF = """<testsuites><testsuite>
<testcase classname="tests.cluster.test_a" name="test_one" time="1.5" />
<testcase classname="tests.cluster.test_a" name="test_two[x]@tests/cluster" time="2.0" />
<testcase classname="tests.mq_protocol.test_b" name="test_pure" time="9.0" />
</testsuite></testsuites>"""
ON = """<testsuites><testsuite>
<testcase classname="tests.cluster.test_a" name="test_one" time="3.0"><failure message="no">no</failure></testcase>
<testcase classname="tests.cluster.test_a" name="test_two[x]" time="0"><skipped message="it is plain" /></testcase>
</testsuite></testsuites>"""


def test_the_table_has_the_tests_of_the_secure_run_and_says_what_it_left_out() -> None:
    assert table(read(OFF), read(ON)).splitlines()[2:] == [
        "| cluster | 2 | 0 | 4 | 0 | 1 | 1 | 3 |",
        "| **all** | 2 | 0 | 4 | 0 | 1 | 1 | 3 |",
        "",
        "Left out:",
        "",
        "- 1 of `tests/cluster/test_a.py`: it is plain",
    ]
    assert table([], read(ON)).splitlines()[2] == "| cluster | - | - | - | 0 | 1 | 1 | 3 |"
