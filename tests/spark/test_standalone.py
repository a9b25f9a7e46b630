"""A Spark cluster and a secure one: a standalone master with two workers, certificates that Spark brings to them, and a
user who has two rights."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_dev.certificates import make_user
from tests import switch
from tests.mq_cli.processes import tritonmq
from tests.spark.crashes.ground import Ground
from tests.spark.crashes.spark_processes import executors_under, kill_one

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not switch.is_on(), reason="its brokers are secure: `make test-secure` runs it"),
]

USER = "etl"


@pytest.mark.parametrize("brought", [True, False], ids=["brought by Spark", "at one path on every machine"])
def test_executors_speak_tls_as_a_user_with_two_rights_and_every_row_comes_out_once(
    tmp_path: Path, brought: bool
) -> None:
    with Ground(tmp_path / "ground", brokers=1) as ground:
        certs = ground.brokers.certs
        assert certs is not None
        make_user(certs, USER)
        files = [certs / name for name in ("ca.crt", f"client.{USER}.crt", f"client.{USER}.key")] if brought else []
        job = ground.job("standalone", "copy", files, certs="certs" if brought else str(certs), user=USER)
        rights = ("--spark-source", job.input, "--spark-sink", *job.outputs)
        assert (
            tritonmq("acl", "allow", f"User:{USER}", *rights, "--bootstrap", ground.brokers.bootstrap).returncode == 0
        )
        try:
            job.begin()
            executors = executors_under(ground.workers)
            assert len(executors) == 2
            job.publish()
            kill_one(executors[0])  # another one is started, and finds the files as well
            job.publish()
            job.until_quiet()
            assert job.verdict().exact, job.verdict()
        finally:
            job.end()
