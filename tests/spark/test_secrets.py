"""A marker in everything that is secret, and then a search for it in all that Spark, brokers and commands show."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mq_client import AclRule, Admin
from mq_dev.local_cluster import LocalCluster
from tests.spark import secrets_driver
from tests.spark.secrets_driver import MODES, SINK, SOURCE

ROOT = Path(__file__).parents[2]
DRIVER = Path(secrets_driver.__file__)
TYPED = "s3cr3t-that-was-typed"
HEAD_OF_A_KEY = 64
"""Characters of a key in PEM that are alike in all of one kind: its first line."""

pytestmark = [pytest.mark.long, pytest.mark.cluster, pytest.mark.timeout(900)]


def secrets_of(cluster: LocalCluster, certs: Path) -> dict[str, str]:
    """Every secret there is, in a form in which it would be shown."""
    found = {"an option": TYPED}
    for path in [*certs.rglob("*.key"), *certs.parent.glob("*.key")]:
        body = "".join(line for line in path.read_text().splitlines() if not line.startswith("-"))
        found[path.name] = body[HEAD_OF_A_KEY : HEAD_OF_A_KEY + 27]
    assert cluster.credential is not None
    found["ZooKeeper's password"] = cluster.credential.read_text().strip().partition(":")[2]
    assert len(found) >= 4, found
    assert all(len(secret) >= len(TYPED) for secret in found.values())
    return found


def commands(cluster: LocalCluster, environment: Mapping[str, str], out: Path) -> None:
    """What the command says of settings, machines and data; the broker does not run any more at the last of them."""
    data = str(cluster.brokers[1].data_dir)

    def run(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "mq_cli.main", *words],
            capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=ROOT,
        )  # fmt: skip
        (out / f"command-{'-'.join(words[:2])}").write_text(done.stdout + done.stderr)

    run("config", "show")
    run("doctor")
    run("cluster", "status")
    run("acl", "list")
    cluster.stop()
    run("storage", "list", "--data", data)
    run("storage", "verify", "--data", data)


def shown(out: Path, cluster: LocalCluster) -> Iterator[tuple[str, bytes]]:
    """All files that were written about it: their place, and what they hold."""
    roots = [out, *(broker.data_dir for broker in cluster.brokers.values())]
    logs = [broker.log_path for broker in cluster.brokers.values()]
    for path in [*(path for root in roots for path in root.rglob("*") if path.is_file()), *logs]:
        yield str(path), path.read_bytes()


def test_no_secret_is_shown_anywhere(tmp_path: Path) -> None:
    certs, out = tmp_path / "certs-by-name", tmp_path / "out"
    for name in ("shown", "events"):
        (out / name).mkdir(parents=True)
    with LocalCluster(tmp_path / "cluster", zookeeper=True, certs=certs, closed=True) as cluster:
        with Admin(cluster.bootstrap, security=cluster.security) as admin:
            for topic in (SOURCE, SINK):
                admin.create_topic(topic, partitions=1, replicas=1)
            admin.alter_acls(add=[AclRule("User:job", "Read", "Topic", SOURCE)])
            made = admin.create_user("job")
        text = made.secret.reveal()
        environment = {
            **os.environ,
            "TRITONMQ_CERTS": str(certs),
            "TRITONMQ_USER": "admin",
            "TRITONMQ_BOOTSTRAP": cluster.bootstrap,
            "TRITONMQ_BROKER_ZOOKEEPER_AUTH": str(cluster.credential),
            "PYTHONPATH": str(ROOT),
            "TOKEN_OF_A_TEST": text,
            "BY_TOKEN": cluster.bootstrap,
        }
        secrets = {**secrets_of(cluster, certs), "a token": text[-43:]}
        with (out / "driver.log").open("wb") as log:
            run = [sys.executable, str(DRIVER), cluster.bootstrap, str(certs), str(out), TYPED]
            done = subprocess.run(run, env=environment, stdout=log, stderr=log, timeout=600, check=False)
        assert done.returncode == 0, (out / "driver.log").read_text()[-4_000:]
        commands(cluster, environment, out)
        found = dict(shown(out, cluster))
    leaks = [
        (what, place) for what, secret in secrets.items() for place, data in found.items() if secret.encode() in data
    ]
    assert leaks == []
    of_spark = {place: data for place, data in found.items() if "/shown/" in place and "repr" not in place}
    named = [place for place, data in of_spark.items() if b"certs-by-name" in data and "error-" not in place]
    assert named == [], "Spark shows no option of a source in Python"
    _is_a_search(found)


def _is_a_search(found: Mapping[str, bytes]) -> None:
    """What is no secret is found in each kind of place: so a secret would be."""
    kinds = {
        "/events/": b"told-to-all",
        "/checkpoint/": SOURCE.encode(),
        "-progress": SOURCE.encode(),
        "-ui-SQL-execution": b"tritonmq",
        "-ui-api": b"told-to-all",
        "-explain-stream": b"tritonmq",
        "-repr-source": b"certs-by-name",
        "error-kafka.ssl.key.password": b"kafka.ssl.key.password",
        "audit.log": b"User:admin",
        "broker-1": b"serves",
        "command-config-show": b"TRITONMQ_BOOTSTRAP",
        "command-cluster-status": b"broker",
        "command-storage-list": SOURCE.encode(),
    }
    kinds |= {f"-explain-{mode}": b"tritonmq" for mode in MODES if mode != "codegen"}
    missing = [
        kind for kind, text in kinds.items() if not any(kind in place and text in data for place, data in found.items())
    ]
    assert missing == []
