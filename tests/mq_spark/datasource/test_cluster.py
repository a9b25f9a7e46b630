"""What the data source makes of its clients: no broker is asked anything here."""

from __future__ import annotations

from mq_spark.datasource.cluster import connect
from mq_spark.planning.options import parse_sink


def test_reads_that_go_to_other_replicas_or_are_passed_on_have_clients_of_their_own() -> None:
    options, forwarding = (
        parse_sink({"bootstrap.servers": "h:1", "forward": forward}, streaming=True) for forward in ("false", "true")
    )
    asked = [(options, "leader", ""), (options, "any", ""), (options, "any", "r1"), (options, "any", "r2")]
    asked.append((forwarding, "leader", ""))
    made = [connect(*each) for each in asked]
    assert len({id(cluster) for cluster in made}) == 5
    assert [connect(*each) for each in asked] == made
