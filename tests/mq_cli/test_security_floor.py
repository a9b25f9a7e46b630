"""`tritonmq cluster security` against a broker with certificates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mq_cli.main import DONE, MISUSED, REFUSED
from mq_dev.local_cluster import LocalCluster
from tests.mq_cli.processes import Outcome, tritonmq
from tests.switch import plain_text


@plain_text("it makes certificates of its own")
def test_what_every_broker_offers_is_demanded_shown_and_given_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs = tmp_path / "certs"
    with LocalCluster(tmp_path / "cluster", certs=certs) as cluster:
        for name, value in (("BOOTSTRAP", cluster.bootstrap), ("CERTS", str(certs)), ("USER", "admin")):
            monkeypatch.setenv(f"TRITONMQ_{name}", value)

        def security(*words: str) -> Outcome:
            return tritonmq("cluster", "security", *words)

        assert b"offers tls, authorize: `tritonmq cluster security raise`" in security("show").stdout
        refused = security("raise", "zk_auth")
        assert (refused.returncode, b"broker 1 does not offer zk_auth" in refused.stderr) == (REFUSED, True)
        done = security("raise")
        assert (done.returncode, done.stdout) == (DONE, b"demanded before: nothing; now: tls, authorize\n")
        assert json.loads(security("show", "--json").stdout) == {
            "demands": ["tls", "authorize"],
            "can_demand": [],
            "brokers": [{"id": 1, "offers": ["tls", "authorize"]}],
            "absent_brokers": [],
        }
        more = security("raise")
        assert (more.returncode, b"demanded as before: tls, authorize\n" in more.stdout) == (3, True)
        assert b"nothing more is offered" in more.stderr
        unasked = security("lower", "tls")
        assert (unasked.returncode, b"--yes" in unasked.stderr) == (MISUSED, True)
        assert security("lower", "--yes").returncode == MISUSED
        assert security("lower", "tls", "--yes").stdout == b"demanded before: tls, authorize; now: authorize\n"
