"""`tritonmq cluster`: who is there, and what they lead."""

from __future__ import annotations

from collections import Counter

import click

from mq_cli.command_group import CommandGroup
from mq_cli.output import bootstrap_option, json_option, open_admin, timeout_option, write_json, write_table


@click.group(cls=CommandGroup)
def cluster() -> None:
    """The brokers and what they lead."""


@cluster.command()
@json_option
@bootstrap_option
@timeout_option
def status(as_json: bool, bootstrap: str, timeout_s: float) -> None:
    """The brokers that are registered, what each leads and holds, and what is missing."""
    with open_admin(bootstrap, timeout_s) as admin:
        described = admin.describe_cluster()
        topics = [admin.describe_topic(name) for name in sorted(admin.list_topics())]
    partitions = [partition for topic in topics for partition in topic.partitions]
    leads = Counter(partition.leader for partition in partitions)
    holds = Counter(broker for partition in partitions for broker in partition.replicas)
    in_sync = Counter(broker for partition in partitions for broker in partition.isr)
    leaderless = leads[0]
    behind = sum(len(partition.isr) < len(partition.replicas) for partition in partitions)
    absent = sorted(holds.keys() - {broker.id for broker in described.brokers})
    if as_json:
        write_json(
            {
                "coordination": described.coordination,
                "brokers": [
                    {
                        "id": broker.id,
                        "address": broker.address,
                        "rack": broker.rack,
                        "incarnation": broker.incarnation,
                        "leads": leads[broker.id],
                        "replicas": holds[broker.id],
                        "in_sync": in_sync[broker.id],
                    }
                    for broker in described.brokers
                ],
                "absent_brokers": absent,
                "topics": len(topics),
                "partitions": len(partitions),
                "partitions_without_leader": leaderless,
                "partitions_not_fully_in_sync": behind,
            }
        )
        return
    write_table(
        ["#broker", "address", "rack", "#life", "#leads", "#replicas", "#in sync"],
        [
            (broker.id, broker.address, broker.rack, broker.incarnation, leads[broker.id], holds[broker.id], in_sync[broker.id])
            for broker in described.brokers
        ]
        + [(broker, "absent", "", "", leads[broker], holds[broker], in_sync[broker]) for broker in absent],
    )
    click.echo()
    click.echo(f"coordination: {described.coordination}")
    click.echo(f"{len(topics)} topics, {len(partitions)} partitions, {leaderless} without a leader, {behind} not fully in sync")
