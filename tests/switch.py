"""The switch: with `TRITONMQ_TEST_SECURE=1` every cluster of processes that a test starts speaks TLS and judges rights.

Its nodes in ZooKeeper are closed, too. Clients are `User:tester`, whom nothing but rules allows anything: what is only
right for superusers would be found. `make test-secure` runs the tests so. Those that start no broker as a process are
left out of such a run: nothing would be different.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest

from mq_broker.coordination.credential import Credential
from mq_client import AclRule, Admin, Security
from mq_client.cluster.client import Client
from mq_client.security import given
from mq_dev.certificates import ADMIN, client_file, make_missing, make_user
from mq_dev.local_cluster import CREDENTIAL_FILE, HOST, LocalCluster
from mq_protocol.access.pem import CA_FILE
from mq_protocol.access.rights import CLUSTER_NAME, OPERATIONS, Kind

VARIABLE: Final = "TRITONMQ_TEST_SECURE"
ROOT: Final = Path(__file__).parents[1]
USER: Final = "tester"
BROKERS: Final = range(1, 10)
"""Those that have certificates. Some tests start further brokers."""


def is_on() -> bool:
    return os.environ.get(VARIABLE, "") not in ("", "0")


def selects() -> bool:
    """Whether tests that start no broker as a process are left out: with `0` too, so that both runs can be compared."""
    return bool(os.environ.get(VARIABLE))


def plain_text(why: str) -> pytest.MarkDecorator:
    """For a test that makes no sense with the switch on, and is left out then. The table of a secure run says why."""
    return pytest.mark.skipif(is_on(), reason=why)


def turn_on(certs: Path) -> None:
    """From now on, in this process and in its children: for each `LocalCluster`, and for clients."""
    make_missing(certs, HOST, BROKERS)
    make_user(certs, USER)
    LocalCluster.certs_by_default = certs
    LocalCluster.user_by_default = USER
    LocalCluster.once_they_serve[:] = [lambda cluster: allow_everything(cluster.bootstrap, cluster.certs)]
    os.environ["TRITONMQ_CERTS"] = str(certs)
    os.environ["TRITONMQ_USER"] = USER


def allow_everything(bootstrap: str, certs: Path | None = None) -> None:
    """By rules, as an administrator would. What is there already is not added again. Without the switch: nothing."""
    certs = certs or LocalCluster.certs_by_default
    if certs is None:
        return
    rules = []
    for kind, operations in OPERATIONS.items():
        every = (CLUSTER_NAME, False) if kind is Kind.CLUSTER else ("", True)
        rules += [AclRule(f"User:{USER}", operation, kind, *every) for operation in operations]
    with Admin(bootstrap, security=Security(certs, ADMIN)) as admin:
        changed = admin.alter_acls(rules)
    assert not changed.not_judging, f"rights are not judged at {changed.not_judging}"


def options(data: Path | None = None) -> list[str]:
    """What a test gives a broker that it starts by itself. `data`: where the credential for ZooKeeper is kept, if there
    is a ZooKeeper."""
    if LocalCluster.certs_by_default is None:
        return []
    more = [] if data is None else ["--zookeeper-auth", Credential.make(data / CREDENTIAL_FILE).path]
    return ["--certs", str(LocalCluster.certs_by_default), *more]


def words() -> str:
    """Python that turns it on in a process that is none of pytest's."""
    if LocalCluster.certs_by_default is None:
        return ""
    return (
        f"import pathlib, sys; sys.path.append({str(ROOT)!r}); from tests import switch; "
        f"switch.turn_on(pathlib.Path({str(LocalCluster.certs_by_default)!r}))"
    )


def script(path: Path, *arguments: str) -> list[str]:
    """The command that runs a script of Python, turned on there as here."""
    if not is_on():
        return [sys.executable, str(path), *arguments]
    run = f"{words()}; import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
    return [sys.executable, "-c", run, *arguments]


def opened(address: str, path: str, timeout_s: float) -> Any:
    """A page that a broker serves at `--http`, as `urllib` opens it."""
    certs = LocalCluster.certs_by_default
    if certs is None:
        return urllib.request.urlopen(f"http://{address}{path}", timeout=timeout_s)
    shown = ssl.create_default_context(cafile=certs / CA_FILE)
    shown.load_cert_chain(certs / f"{client_file(USER)}.crt", certs / f"{client_file(USER)}.key")
    return urllib.request.urlopen(f"https://{address}{path}", timeout=timeout_s, context=shown)


def scraped() -> dict[str, Any]:
    """What Prometheus is told of brokers' ports beside their addresses."""
    certs = LocalCluster.certs_by_default
    if certs is None:
        return {}
    pair = certs / client_file(USER)
    files = {"ca_file": str(certs / CA_FILE), "cert_file": f"{pair}.crt", "key_file": f"{pair}.key"}
    return {"scheme": "https", "tls_config": files}


def zookeeper_options() -> list[str]:
    """The same, where brokers bring a ZooKeeper of their own: towards that, too."""
    return ["--zookeeper-certs", str(LocalCluster.certs_by_default)] if LocalCluster.certs_by_default else []


def client() -> Client:
    """Who asks a broker by `mq_client.cluster.lines`, below what applications use."""
    return Client((), given(None))
