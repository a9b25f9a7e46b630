"""`tritonmq transaction list | show | give | abort`, and the same from Python, against a broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

from mq_cli.main import DONE, MISUSED, REFUSED, run
from mq_client import AclRule, Admin, UnknownTransaction
from mq_client.transactions import TransactionClient
from mq_dev.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("transactions")) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("flights", partitions=2, schema="n long NOT NULL")
        yield cluster.bootstrap


@pytest.fixture
def query(bootstrap: str) -> str:
    """A query that decided micro-batch 0, staged some of the next, and died."""
    query_id = str(uuid.uuid4())
    rows = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
    with TransactionClient(bootstrap) as client:
        stage = client.open_stage((query_id, "flights"), 0, "run")
        stage.add("flights", 0, rows)
        client.decide((query_id, "flights"), 0, "run", stage.finish())
        for partition in range(2):
            client.stage("flights", partition, [rows], (query_id, "flights"), 1, "run")
    return query_id


def listed(bootstrap: str, capsys: pytest.CaptureFixture[str], key: str) -> list[dict[str, object]]:
    assert run(["transaction", "show", key, "--json", "--bootstrap", bootstrap]) == DONE
    documents: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return documents


def test_a_dead_query_is_listed_shown_and_aborted(
    bootstrap: str, query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [shown] = listed(bootstrap, capsys, query)
    key = str(shown["key"])
    assert query not in key
    assert key.endswith(":flights")
    assert (shown["last_decided"], shown["published"], shown["aborted"], shown["batches"]) == (0, True, False, 2)
    assert run(["transaction", "list", "--bootstrap", bootstrap]) == DONE
    assert key.partition(":")[0] in capsys.readouterr().out
    assert run(["transaction", "show", key, "--bootstrap", bootstrap]) == DONE
    assert "micro-batch 0 is decided and published" in capsys.readouterr().out
    assert run(["transaction", "abort", key, "--yes", "--bootstrap", bootstrap]) == DONE
    assert "2 of its staged batches were removed" in capsys.readouterr().err
    [shown] = listed(bootstrap, capsys, key)
    assert (shown["aborted"], shown["batches"], shown["last_decided"]) == (True, 0, 0)
    assert run(["transaction", "abort", key, "--yes", "--json", "--bootstrap", bootstrap]) == DONE
    again = json.loads(capsys.readouterr().out)
    assert (again["discarded_batches"], again["unreached"], again["published"]) == (0, [], True)


def test_a_query_is_given_to_another_user(bootstrap: str, query: str, capsys: pytest.CaptureFixture[str]) -> None:
    [shown] = listed(bootstrap, capsys, query)
    key, former = str(shown["key"]), shown["owner"]
    give = ["transaction", "give", key, "--to", "User:etl-2", "--bootstrap", bootstrap]
    assert run(give) == DONE
    assert f"is User:etl-2's now; it was {former or 'nobody'}'s" in capsys.readouterr().err
    assert run(give) == DONE
    assert "User:etl-2's already" in capsys.readouterr().err
    assert run([*give, "--json"]) == DONE
    told = json.loads(capsys.readouterr().out)
    assert (told["sink"], told["owner"], told["former"]) == ("flights", "User:etl-2", "User:etl-2")
    assert listed(bootstrap, capsys, query)[0]["owner"] == "User:etl-2"
    assert run(["transaction", "list", "--bootstrap", bootstrap]) == DONE
    assert "User:etl-2" in capsys.readouterr().out
    assert run(["transaction", "give", key, "--to", "etl-2", "--bootstrap", bootstrap]) == REFUSED
    assert "write User:NAME" in capsys.readouterr().err


def test_who_gives_a_query_to_a_user_whom_nobody_knows_is_told(
    bootstrap: str, query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(bootstrap) as admin:
        admin.alter_acls([AclRule("User:flights-etl", "Read", "Topic", "flights")])
    key = str(listed(bootstrap, capsys, query)[0]["key"])
    for owner, near in (("User:flights-elt", ": did you mean 'User:flights-etl'?"), ("User:q9", "\n")):
        assert run(["transaction", "give", key, "--to", owner, "--bootstrap", bootstrap]) == DONE
        told = capsys.readouterr().err
        assert f"warning: no broker has seen {owner} since it started, and no rule names it{near}" in told
        assert f"is {owner}'s now" in told
    assert run(["transaction", "give", key, "--to", "User:flights-etl", "--bootstrap", bootstrap]) == DONE
    assert "warning" not in capsys.readouterr().err


def test_without_somebody_to_ask_yes_must_be_said(
    bootstrap: str, query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["transaction", "abort", query, "--bootstrap", bootstrap]) == MISUSED
    assert "--yes" in capsys.readouterr().err
    [shown] = listed(bootstrap, capsys, query)
    assert not shown["aborted"]


def test_a_key_that_nobody_knows_is_refused_by_name(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["show", "nobody"], ["abort", "nobody", "--yes"], ["give", "nobody", "--to", "User:etl"]):
        assert run(["transaction", *command, "--bootstrap", bootstrap]) == REFUSED
        assert "transaction list" in capsys.readouterr().err
    with Admin(bootstrap) as admin, pytest.raises(UnknownTransaction):
        admin.abort_transaction("nobody")
