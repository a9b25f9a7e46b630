"""`tritonmq cluster secure-zookeeper`: close the nodes of a cluster that was begun open."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mq_cli.output import checking_what_was_typed, counted, say, write_line
from mq_protocol.pem import Files, files_in

if TYPE_CHECKING:
    from mq_broker.coordination.credential import Credential
    from mq_broker.coordination.zookeeper_closing import Walked


@click.command(short_help="Close the cluster's nodes in ZooKeeper to all but the brokers.")
@click.option("--zookeeper", required=True, metavar="HOSTS", help="HOST:PORT,… of the cluster's ZooKeeper.")
@click.option(
    "--zookeeper-auth",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The file with USER:PASSWORD that every broker was started with.",
)
@click.option(
    "--zookeeper-certs",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Speak TLS with ZooKeeper, with ca.crt, broker.crt and broker.key of this directory.",
)
@click.option("--check", is_flag=True, help="Only look at every node. Exit status 1: some are open.")
def secure_zookeeper(zookeeper: str, zookeeper_auth: Path, zookeeper_certs: Path | None, check: bool) -> int:
    """Close the cluster's nodes in ZooKeeper to all but the brokers.

    For a cluster that was begun without --zookeeper-auth. Every broker must have been started again with the option.
    The cluster goes on meanwhile. If the command is broken off, the cluster goes on too: give the command again.
    """
    from mq_broker.coordination.credential import Credential

    logging.getLogger("mq_broker").addHandler(logging.NullHandler())  # what is wrong the error says
    with checking_what_was_typed():
        credential = Credential.read(zookeeper_auth)
    tls = None if zookeeper_certs is None else files_in(zookeeper_certs)
    return asyncio.run(_work(zookeeper, credential, tls, check=check))


async def _work(hosts: str, credential: Credential, tls: Files | None, *, check: bool) -> int:
    from mq_broker.coordination.zookeeper_closing import Closing

    async with Closing(hosts, credential, tls=tls) as closing:
        if check:
            found = await closing.check()
            write_line(f"{counted(found.nodes, 'node')}, {found.opened} open{_such_as(found)}")
            return 1 if found.opened else 0
        done = await closing.close(lambda sofar: say(f"{counted(sofar.opened, 'node')} closed so far"))
    write_line(f"{counted(done.nodes, 'node')}, {done.opened} closed now: only the brokers may read and write them")
    return 0


def _such_as(found: Walked) -> str:
    return f", such as {found.example}" if found.opened else ""
