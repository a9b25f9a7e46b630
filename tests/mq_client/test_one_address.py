"""Every client, by gRPC and over stream ports, through a tunnel: the broker's name means something to the tunnel alone,
so nobody reaches it past that."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from mq_client import Admin, Consumer, Lock, Producer, Queue, Reader, Security, TritonMQError, Unreachable
from mq_client.cluster import streams
from mq_dev.local_cluster import HOST, free_port
from tests.hidden import Proxy, hidden_bootstrap, hidden_cluster, name_of
from tests.securing import Certs

pytestmark = pytest.mark.processes


class Hidden:
    """What clients need."""

    def __init__(self, bootstrap: str, via: str, security: Security | None = None) -> None:
        self.bootstrap = bootstrap
        self.via = via
        self.security = security


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hidden]:
    with (
        hidden_cluster(tmp_path_factory.mktemp("hidden")) as cluster,
        Proxy(cluster.bootstrap) as proxy,
    ):
        yield Hidden(hidden_bootstrap(cluster), proxy.via)


@pytest.fixture(params=["grpc", "stream"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which, and no other."""
    monkeypatch.setenv(streams.VARIABLE, request.param)
    monkeypatch.setattr(streams, "_avoided", {})
    return str(request.param)


def test_without_the_tunnel_nobody_is_reached(plain: Hidden) -> None:
    with Admin(plain.bootstrap, timeout_ms=1_000) as admin, pytest.raises(Unreachable):
        admin.describe_cluster()


def use_everything(hidden: Hidden, topic: str) -> None:
    bootstrap, how = hidden.bootstrap, {"via": hidden.via, "security": hidden.security}
    with Admin(bootstrap, **how) as admin:
        admin.create_topic(topic, partitions=2, schema="n long")
        admin.declare_queue(topic, "workers")
        assert [broker.address for broker in admin.describe_cluster().brokers] == [bootstrap]
    with Producer(bootstrap, **how) as producer:
        for partition in (0, 1):
            rows = pa.RecordBatch.from_pydict({"n": range(1_000)}, schema=pa.schema([("n", pa.int64())]))
            producer.publish_batch(topic, rows, partition=partition).result()
        producer.publish(topic, {"n": 1_000}, partition=0).result()
    with Reader(bootstrap, **how) as reader:
        found = [n for rows in reader.read(topic, 0) for n in rows.column("n").to_pylist()]
        assert found == list(range(1_001))
    with Consumer(bootstrap, group="g", start="earliest", idle_ms=20_000, **how) as consumer:
        consumer.subscribe(topic)
        seen = list(islice(consumer, 2_001))
        assert len(seen) == 2_001
    with Queue(bootstrap, topic, "workers", idle_ms=20_000, **how) as queue:
        record = next(iter(queue))
        record.ack()
    with Lock(bootstrap, f"lock-{topic}", **how) as lock:
        assert lock.token


def test_every_client_goes_through_it(plain: Hidden, topic: str, transport: str) -> None:
    use_everything(plain, topic)


def test_the_environment_names_it_and_a_word_of_no_proxy_is_not_obeyed(
    plain: Hidden, topic: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITONMQ_VIA", plain.via)
    monkeypatch.setenv("no_proxy", "hidden,127.0.0.1")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:9")
    with Admin(plain.bootstrap) as admin:
        admin.create_topic(topic)
    with Producer(plain.bootstrap) as producer:
        producer.publish(topic, "hello").result()
    with Consumer(plain.bootstrap, start="earliest", idle_ms=20_000) as consumer:
        consumer.subscribe(topic)
        assert next(iter(consumer)).value == b"hello"
    with Admin(plain.bootstrap, via="", timeout_ms=500) as admin, pytest.raises(Unreachable):
        admin.describe_cluster()


def test_over_tls_the_brokers_own_certificate_is_checked(
    tmp_path: Path, topic: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs = Certs(tmp_path / "certs", 1, hosts=(HOST, name_of(1)))
    stranger = Certs(tmp_path / "other")
    security = certs.user("admin")
    with hidden_cluster(tmp_path / "hidden", certs=certs.path) as cluster:
        monkeypatch.setenv("TRITONMQ_CERTS", str(certs.path))
        monkeypatch.setenv("TRITONMQ_USER", "admin")
        with Proxy(cluster.bootstrap) as proxy:
            via = proxy.via.replace(HOST, "localhost")  # a name that is in no certificate
            use_everything(Hidden(hidden_bootstrap(cluster), via, security), topic)
            with (
                Admin(proxy.via, 30_000, security, via="") as admin,
                pytest.raises(TritonMQError, match="it is a tunnel, and no broker: give this address by --via"),
            ):
                admin.describe_cluster()
            believing = stranger.user("admin")
            with (
                Admin(hidden_bootstrap(cluster), 30_000, believing, proxy.via) as admin,
                pytest.raises(TritonMQError, match="certificate"),
            ):
                admin.describe_cluster()


def test_a_certificate_for_the_tunnels_host_is_none_for_the_broker(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs = Certs(tmp_path / "certs", 1, hosts=(HOST,))
    monkeypatch.setenv("TRITONMQ_CERTS", str(certs.path))
    security = certs.user("admin")
    with (
        hidden_cluster(tmp_path / "hidden", certs=certs.path) as cluster,
        Proxy(cluster.bootstrap) as proxy,
        Admin(hidden_bootstrap(cluster), 30_000, security, proxy.via) as admin,
        pytest.raises(TritonMQError, match=r"certificate is not accepted: .*broker-1\.hidden"),
    ):
        admin.describe_cluster()


def test_an_address_that_is_no_brokers_is_refused_and_the_tunnel_is_named(plain: Hidden) -> None:
    with Admin("127.0.0.1:22", via=plain.via) as admin, pytest.raises(Unreachable) as raised:
        admin.describe_cluster()
    assert f"the tunnel at {plain.via} refuses 127.0.0.1:22" in str(raised.value)
    assert "no broker was asked" in str(raised.value)


def test_what_is_sent_while_the_tunnel_is_killed_arrives_once_and_in_order(
    tmp_path: Path, topic: str, transport: str
) -> None:
    with hidden_cluster(tmp_path / "hidden") as cluster, Proxy(cluster.bootstrap) as proxy:
        bootstrap = hidden_bootstrap(cluster)
        with (
            Producer(bootstrap, timeout_ms=90_000, via=proxy.via) as producer,
            Consumer(bootstrap, start="earliest", idle_ms=90_000, via=proxy.via) as consumer,
        ):
            with Admin(bootstrap, via=proxy.via) as admin:
                admin.create_topic(topic)
            consumer.subscribe(topic)
            records = iter(consumer)
            sent, heard = [], []
            for number in range(400):
                if number % 100 == 50:
                    proxy.kill()
                sent.append(producer.publish(topic, str(number).encode()))
                if number % 100 == 60:
                    proxy.start()
                    sent[-1].result()
                    heard += [next(records).value for _ in range(len(sent) - len(heard))]
            producer.flush()
            heard += [next(records).value for _ in range(len(sent) - len(heard))]
        assert heard == [str(number).encode() for number in range(400)]
        assert [each.result().offset for each in sent] == list(range(400))


def test_clients_with_tokens_go_through_a_tunnel_that_has_one(
    tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs = Certs(tmp_path / "certs", 1, hosts=(HOST, name_of(1)))
    port = free_port(HOST)
    words = [
        "--listen-token",
        f"{HOST}:{port}",
        "--advertise-token",
        f"{name_of(1)}:{port}",
        "--superusers",
        "User:admin,User:etl",
    ]
    admin = certs.user("admin")
    monkeypatch.setenv("TRITONMQ_CERTS", str(certs.path))
    monkeypatch.setenv("TRITONMQ_USER", "admin")
    with hidden_cluster(tmp_path / "hidden", certs=certs.path, arguments=words) as cluster:
        with (
            Proxy(cluster.bootstrap) as proxy,
            Admin(hidden_bootstrap(cluster), security=admin, via=proxy.via) as administrator,
        ):
            token = administrator.create_user("etl").secret
            with (
                Admin(f"{name_of(1)}:{port}", 30_000, Security(certs.path, token=token), proxy.via) as etl,
                pytest.raises(Unreachable, match=r"tunnel needs a token of its own \(`tritonmq proxy --token-file`\)"),
            ):
                etl.describe_cluster()
        path = tmp_path / "etl.token"
        path.write_text(token.reveal())
        path.chmod(0o600)
        monkeypatch.delenv("TRITONMQ_USER")
        monkeypatch.setenv("TRITONMQ_TOKEN_FILE", str(path))
        with Proxy(f"{HOST}:{port}") as proxy:
            hidden = Hidden(f"{name_of(1)}:{port}", proxy.via, Security(certs.path, token_file=path))
            use_everything(hidden, topic)
