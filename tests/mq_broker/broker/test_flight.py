"""Arrow Flight at a broker: Arrow's own client reads what was written, and may do nothing else."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from pyarrow import flight

from mq_broker.broker.config import BrokerConfig
from mq_broker.measured import QUOTA_WAITS
from mq_client import AclRule, Admin, Producer, Security
from mq_dev.embedded_zookeeper import free_port
from mq_protocol.access.pem import files_of_broker, read
from mq_protocol.limits import FLIGHT_REQUEST_BYTES_MAX
from mq_protocol.wire.flight import SERVICE
from tests.cluster.harness import wait_until
from tests.mq_broker.broker.by_token import Place, over_tls
from tests.mq_broker.broker.cluster import Broker
from tests.securing import HOST, Certs

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("word", pa.string()), pa.field("list", pa.list_(pa.int32()))])
DDL = "n long, word string, list array<int>"


def rows(start: int, end: int) -> pa.RecordBatch:
    numbers = range(start, end)
    words = [None if n % 7 == 0 else f"word {n}" for n in numbers]
    return pa.record_batch([pa.array(numbers), words, [list(range(n % 4)) for n in numbers]], schema=SCHEMA)


class Served:
    """A broker in plain text, and a client of Flight to it."""

    def __init__(self, broker: str, uri: str) -> None:
        self.broker, self.uri = broker, uri
        self.client = flight.connect(uri)

    def admin(self) -> Admin:
        return Admin(self.broker)

    def table(self, **wanted: Any) -> pa.Table:
        return self.client.do_get(ticket(**wanted)).read_all()


def ticket(**wanted: Any) -> flight.Ticket:
    return flight.Ticket(json.dumps({"topic": "t", "partition": 0, **wanted}))


def beside(tmp_path: Path, job: Callable[[Served], None], **fields: Any) -> None:
    """Run the job, which is synchronous as clients are, beside such a broker."""

    async def scenario() -> None:
        port = free_port(HOST)
        broker = await Broker(
            BrokerConfig(1, f"{HOST}:0", tmp_path / "data", flight=f"{HOST}:{port}", **fields)
        ).start()
        served = Served(broker.address, f"grpc+tcp://{HOST}:{port}")
        try:
            await asyncio.to_thread(job, served)
        finally:
            served.client.close()
            await broker.stop()

    asyncio.run(scenario())


def written(served: Served, sizes: list[int]) -> pa.Table:
    """A topic `t` with batches of these sizes."""
    with served.admin() as admin:
        admin.create_topic("t", schema=DDL, durability="memory")
    at = 0
    with Producer(served.broker, compression="zstd") as producer:
        for size in sizes:
            producer.publish_batch("t", rows(at, at + size), partition=0).result(30)
            at += size
    return pa.Table.from_batches([rows(0, at)])


def chunks(reader: flight.FlightStreamReader) -> Iterator[tuple[pa.RecordBatch, dict[str, int]]]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        yield chunk.data, json.loads(chunk.app_metadata.to_pybytes())


def test_each_range_has_its_rows_and_no_others_and_says_where_it_is(tmp_path: Path) -> None:
    def job(served: Served) -> None:
        chance = random.Random(3)
        # Small ones, which are joined, and some above what is joined
        sizes = [chance.choice([1, 2, 3, 50, 700]) for _ in range(60)] + [40_000, 1, 40_000, 1, 1]
        whole = written(served, sizes)
        end = whole.num_rows
        assert served.table().equals(whole)
        places = {0, end, *(chance.randrange(end) for _ in range(40)), sum(sizes[:61]), sum(sizes[:62])}
        for start in places:
            for stop in sorted(place for place in places if place >= start)[:6]:
                expected = whole.slice(start, stop - start)
                assert served.table(start=start, end=stop).equals(expected), (start, stop)
                found = served.table(start=start, end=stop, columns=["list", "n"])
                assert found.equals(expected.select(["list", "n"])), (start, stop)
                found = served.table(start=start, end=stop, columns=["word"], filter=f"n >= {start + 3} AND n != 40000")
                mask = [n >= start + 3 and n != 40_000 for n in expected["n"].to_pylist()]
                assert found.equals(expected.filter(pa.array(mask, pa.bool_())).select(["word"])), (start, stop)
        reader = served.client.do_get(ticket(start=5, end=end - 5))
        told = {key.decode(): value.decode() for key, value in reader.schema.metadata.items()}
        assert told == {
            "tritonmq.topic": "t",
            "tritonmq.partition": "0",
            "tritonmq.start": "5",
            "tritonmq.end": str(end - 5),
        }
        at, messages = 5, 0
        for batch, about in chunks(reader):
            assert (about["start"], about["end"] - about["start"]) == (at, batch.num_rows)
            assert about["timestamp_us"] > 1_700_000_000_000_000
            at, messages = about["end"], messages + 1
        assert at == end - 5
        assert messages < 12, "small batches are joined"

    beside(tmp_path, job)


def test_many_columns_of_many_partitions_are_told_of_one_partition_at_a_time(tmp_path: Path) -> None:
    columns = [f"{'column' * 20}{number}" for number in range(300)]

    def job(served: Served) -> None:
        with served.admin() as admin:
            schema = pa.schema([pa.field(name, pa.int64()) for name in columns])
            admin.create_topic("t", partitions=150, schema=schema, durability="memory")
        wanted = flight.FlightDescriptor.for_command(json.dumps({"topic": "t", "columns": columns}))
        with pytest.raises(pa.ArrowInvalid, match="ask for one partition"):
            served.client.get_flight_info(wanted)
        one = json.dumps({"topic": "t", "columns": columns, "partition": 149})
        info = served.client.get_flight_info(flight.FlightDescriptor.for_command(one))
        assert [json.loads(each.ticket.ticket)["columns"] for each in info.endpoints] == [columns]
        assert len(served.client.get_flight_info(flight.FlightDescriptor.for_path("t")).endpoints) == 150

    beside(tmp_path, job)


def test_what_is_listed_and_not_read_counts_as_held_memory(tmp_path: Path) -> None:
    schema = pa.schema([pa.field(f"{'column' * 20}{number}", pa.int64()) for number in range(300)])

    def job(served: Served) -> None:
        with (
            served.admin() as admin,
            # Without probes its window stays small: else all of it may be on its way at once
            grpc.insecure_channel(served.uri.removeprefix("grpc+tcp://"), [("grpc.http2.bdp_probe", 0)]) as channel,
        ):
            made = admin.create_topics([f"t{number}" for number in range(30)], schema=schema, durability="memory")
            assert all(each.error is None for each in made)
            listed = channel.unary_stream(f"/{SERVICE}/ListFlights", None, None)(b"")

            def held() -> float:
                return admin.observe("broker").brokers[0].values["client_memory_bytes"]

            next(listed)
            wait_until(lambda: held() > 30 * 300 * 120, "what is listed is counted")
            assert len(list(listed)) == 29
            wait_until(lambda: held() == 0, "nothing is held any more")

    beside(tmp_path, job)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a topic that is not there": ({"topic": "absent"}, "there is no topic 'absent'"),
    "a topic that cannot be there": ({"topic": ""}, "topic name"),
    "a partition that is not there": ({"partition": 1}, "has partitions 0 to 0"),
    "an end below the start": ({"start": 5, "end": 4}, "give start <= end"),
    "a start beyond the end": ({"start": 11}, "beyond the end of the log"),
    "an end that is not written": ({"end": 11}, "ends at offset 10 now"),
    "a column that is not there": ({"columns": ["words"]}, "did you mean 'word'"),
    "a column twice": ({"columns": ["n", "n"]}, "name each once"),
    "a filter that is none": ({"filter": "n >"}, "filter"),
    "a key that means nothing": ({"offset": 1}, "has a key 'offset'"),
}


def test_a_ticket_that_cannot_be_served_is_refused_by_what_is_wrong_with_it(tmp_path: Path) -> None:
    def job(served: Served) -> None:
        written(served, [10])
        for what, (said, why) in WRONG.items():
            with pytest.raises(pa.ArrowException) as refused:
                served.table(**said)
            assert why in str(refused.value), what
        assert served.table().num_rows == 10

    beside(tmp_path, job)


def test_what_was_dropped_by_retention_is_out_of_range_and_reading_begins_behind_it(tmp_path: Path) -> None:
    def job(served: Served) -> None:
        written(served, [10, 10])
        with served.admin() as admin:
            admin.purge("t", 0, before=10)
        assert served.table()["n"].to_pylist() == list(range(10, 20))
        with pytest.raises(pa.ArrowException, match="it starts at 10: read there"):
            served.table(start=0)

    beside(tmp_path, job)


def test_whatever_would_change_something_is_refused_unread(tmp_path: Path) -> None:
    def job(served: Served) -> None:
        written(served, [1])
        client, where = served.client, flight.FlightDescriptor.for_path("t")
        refused = pytest.raises(pa.ArrowNotImplementedError, match="read only")
        with refused:
            writer, _ = client.do_put(where, SCHEMA)
            writer.write_batch(rows(1, 2))
            writer.close()
        with refused:
            _, reader = client.do_exchange(where)
            reader.read_chunk()
        with refused:
            list(client.do_action(flight.Action("drop", b"t")))
        with refused:
            list(client.list_actions())
        with refused:
            client.authenticate_basic_token("user", "password")
        assert served.table().num_rows == 1

    beside(tmp_path, job)


def test_a_message_above_64_kib_is_not_taken(tmp_path: Path) -> None:
    def job(served: Served) -> None:
        written(served, [1])
        with pytest.raises(pa.ArrowException, match="larger than max"):
            served.client.do_get(flight.Ticket(b" " * FLIGHT_REQUEST_BYTES_MAX)).read_all()
        assert served.table().num_rows == 1

    beside(tmp_path, job)


# ------------------------------------------------------------------ over TLS


def secured(tmp_path: Path, job: Callable[[Place, str], None], **fields: Any) -> None:
    async def scenario() -> None:
        at = f"{HOST}:{free_port(HOST)}"
        async with over_tls(tmp_path, flight=at, **fields) as place:
            await asyncio.to_thread(job, place, f"grpc+tls://{at}")

    asyncio.run(scenario())


def by_certificate(place: Place, uri: str, security: Security) -> flight.FlightClient:
    pem = read(security.files())
    return flight.connect(uri, tls_root_certs=place.certs.ca, cert_chain=pem.certificate, private_key=pem.key)


def filled(place: Place, rights: tuple[str, ...] = (), count: int = 10, batches: int = 1) -> None:
    with place.admin() as admin:
        admin.create_topic("t", schema=DDL, durability="memory")
        if rights:
            admin.alter_acls([AclRule("User:etl", each, "Topic", "t") for each in rights])
    with Producer(place.address, security=place.certs.user("admin")) as producer:
        for _ in range(batches):
            producer.publish_batch("t", rows(0, count), partition=0).result(30)


def wait_until_noted(place: Place, **like: str) -> None:
    """In the audit log. A thread of its own writes it, after the answer at times."""

    def noted() -> bool:
        lines = map(json.loads, (place.data / "audit.log").read_text().splitlines())
        return any(all(line.get(key) == value for key, value in like.items()) for line in lines)

    wait_until(noted, f"a line of the audit log is like {like}")


@pytest.mark.parametrize(
    ("rights", "described", "read_"),
    [((), pa.ArrowKeyError, pa.ArrowKeyError), (("Describe",), None, flight.FlightUnauthorizedError)],
)
def test_rights_are_judged_by_the_name_in_the_certificate(
    rights: tuple[str, ...], described: Any, read_: Any, tmp_path: Path
) -> None:
    def job(place: Place, uri: str) -> None:
        filled(place, rights)
        with by_certificate(place, uri, place.certs.user("etl")) as etl:
            assert len(list(etl.list_flights())) == (described is None)
            where = flight.FlightDescriptor.for_path("t")
            for ask in (etl.get_flight_info, etl.get_schema):
                if described is None:
                    assert ask(where).schema == SCHEMA
                else:
                    with pytest.raises(described, match="there is no topic 't'"):
                        ask(where)
            with pytest.raises(read_):
                etl.do_get(ticket()).read_all()
            with place.admin() as admin:
                admin.alter_acls([AclRule("User:etl", "Read", "Topic", "t")])
            info = etl.get_flight_info(where)
            assert [each.uri.decode() for each in info.endpoints[0].locations] == [uri]
            assert etl.do_get(info.endpoints[0].ticket).read_all().num_rows == 10
        wait_until_noted(place, verdict="denied", method="DoGet", principal="User:etl", operation="Read")
        wait_until_noted(place, verdict="allowed", method="DoGet", principal="User:etl", operation="Read")

    secured(tmp_path, job, audit_reads=True)


def test_nobody_is_served_without_a_certificate_or_with_one_of_a_strangers_authority(tmp_path: Path) -> None:
    stranger = Certs(tmp_path / "strangers", 1)

    def job(place: Place, uri: str) -> None:
        filled(place, ("Read",))
        pem = read(stranger.user("etl").files())
        for shown in ({}, {"cert_chain": pem.certificate, "private_key": pem.key}):
            refused = pytest.raises(flight.FlightUnavailableError)
            with flight.connect(uri, tls_root_certs=place.certs.ca, **shown) as client, refused:
                client.do_get(ticket(), flight.FlightCallOptions(timeout=20)).read_all()
        with flight.connect(uri.replace("+tls", "+tcp")) as client, pytest.raises(flight.FlightUnavailableError):
            client.do_get(ticket(), flight.FlightCallOptions(timeout=20)).read_all()
        own = files_of_broker(place.certs.path, 1)
        broker = Security(ca=own.ca, certificate=own.certificate, key=own.key)
        refused = pytest.raises(flight.FlightUnauthorizedError, match="no user's")
        with by_certificate(place, uri, broker) as client, refused:
            client.do_get(ticket()).read_all()

    secured(tmp_path, job)


def test_who_shows_a_token_reads_at_the_port_for_tokens(tmp_path: Path) -> None:
    tokens = f"{HOST}:{free_port(HOST)}"

    def job(place: Place, _uri: str) -> None:
        filled(place, ("Read",))
        shown = flight.FlightCallOptions(
            headers=[(b"authorization", f"Bearer {place.made().secret.reveal()}".encode())]
        )
        with flight.connect(f"grpc+tls://{tokens}", tls_root_certs=place.certs.ca) as client:
            info = client.get_flight_info(flight.FlightDescriptor.for_path("t"), shown)
            assert [each.uri.decode() for each in info.endpoints[0].locations] == [f"grpc+tls://{tokens}"]
            assert client.do_get(info.endpoints[0].ticket, shown).read_all().num_rows == 10
            for wrong in ([], [(b"authorization", b"Bearer tmq_none")]):
                with pytest.raises(flight.FlightUnauthenticatedError, match="not authenticated"):
                    client.do_get(ticket(), flight.FlightCallOptions(headers=wrong)).read_all()
            with pytest.raises(pa.ArrowNotImplementedError, match="read only"):
                list(client.do_action(flight.Action("drop", b"t"), shown))
        place.wait_until_audited("no token", "DoGet")

    secured(tmp_path, job, grpc_token=tokens)


def test_a_stream_ends_when_the_right_is_taken_away(tmp_path: Path) -> None:
    def job(place: Place, uri: str) -> None:
        filled(place, ("Read",), count=50_000, batches=60)  # more than a client's connection takes at once
        with by_certificate(place, uri, place.certs.user("etl")) as etl:
            reader = etl.do_get(ticket())
            reader.read_chunk()
            with place.admin() as admin:
                admin.alter_acls(remove=[AclRule("User:etl", "Read", "Topic", "t")])
            with pytest.raises(pa.ArrowKeyError, match="there is no topic 't'"):
                reader.read_all()
        wait_until_noted(place, method="DoGet", reason="the right was taken away")

    secured(tmp_path, job)


def test_bytes_that_are_read_count_for_the_quota_of_who_reads_them(tmp_path: Path) -> None:
    def job(place: Place, uri: str) -> None:
        filled(place, ("Read",), count=100_000)
        with place.admin() as admin:
            admin.set_quotas("User:etl", fetch="1MiB/s")
        with by_certificate(place, uri, place.certs.user("etl")) as etl:
            before = sum(QUOTA_WAITS.rows().values())
            for _ in range(2):
                assert etl.do_get(ticket()).read_all().num_rows == 100_000
            assert sum(QUOTA_WAITS.rows().values()) > before

    secured(tmp_path, job)
