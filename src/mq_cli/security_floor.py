"""`tritonmq cluster security`: what the cluster demands of each of its brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from mq_cli.command_group import CommandGroup
from mq_cli.connection import Connection, connection_options
from mq_cli.output import cell, json_option, say, write_json, write_line, write_table

if TYPE_CHECKING:
    from mq_client.floor_admin import SecurityFloor

_DEMANDS: Final = ("tls", "authorize", "zk_auth")


@click.group(cls=CommandGroup, short_help="What the cluster demands of each broker.")
def security() -> None:
    """The security floor: what the cluster demands of each broker. One that does not offer it does not start.

    `tls`: no port is in plain text. `authorize`: rights are judged. `zk_auth`: the broker has a credential for
    ZooKeeper, and the cluster's nodes there are closed to others.
    """


@security.command()
@json_option
@connection_options
def show(as_json: bool, connection: Connection) -> None:
    """Show what is demanded, and what each broker offers."""
    with connection.admin() as admin:
        found = admin.security_floor()
    if as_json:
        write_json(
            {
                "demands": list(found.demands),
                "can_demand": list(found.can_demand),
                "brokers": [{"id": broker, "offers": list(offers)} for broker, offers in found.offers.items()],
                "absent_brokers": list(found.absent),
            }
        )
        return
    _write_offers(found)
    click.echo()
    write_line(f"demanded: {_listed(found.demands)}")
    if found.can_demand:
        write_line(
            f"every broker that is registered offers {_listed(found.can_demand)}: `tritonmq cluster security raise` "
            "demands it"
        )
    if found.absent:
        write_line(f"brokers {list(found.absent)} hold replicas and are not registered: nobody knows what they offer")


@security.command("raise")
@click.argument("demands", nargs=-1, metavar="[tls|authorize|zk_auth]...")
@click.option("--force", is_flag=True, help="Although brokers that hold replicas are not registered.")
@connection_options
def raise_(demands: tuple[str, ...], force: bool, connection: Connection) -> int:
    """Demand more of every broker: what is named, or all that every broker offers.

    It is refused unless every broker that is registered offers it. From then on a broker that does not offer it does
    not start, and stops if it runs. Only `lower` takes that back.

    Exit status 3: nothing was named, and there is nothing more that every broker offers.
    """
    with connection.admin() as admin:
        named = demands or admin.security_floor().can_demand
        found = admin.raise_security_floor(*named, force=force) if named else admin.security_floor()
    _say_change(found)
    if named:
        return 0
    say("nothing more is offered by every broker:")
    _write_offers(found)
    return 3


@security.command()
@click.argument("demands", nargs=-1, required=True, metavar="tls|authorize|zk_auth...")
@click.option("--yes", is_flag=True, help="Really do it.")
@connection_options
def lower(demands: tuple[str, ...], yes: bool, connection: Connection) -> int:
    """Demand less: brokers may be started that do not offer what is named."""
    if not yes:
        raise click.UsageError(
            f"one broker that is started without {_listed(demands)} may then open the cluster: say --yes if you mean it"
        )
    with connection.admin() as admin:
        _say_change(admin.lower_security_floor(*demands))
    return 0


def _say_change(found: SecurityFloor) -> None:
    if found.before == found.demands:
        write_line(f"demanded as before: {_listed(found.demands)}")
    else:
        write_line(f"demanded before: {_listed(found.before)}; now: {_listed(found.demands)}")


def _write_offers(found: SecurityFloor) -> None:
    rows = [(broker, *(cell(each in offers) for each in _DEMANDS)) for broker, offers in found.offers.items()]
    write_table(["#broker", *_DEMANDS], rows)


def _listed(demands: tuple[str, ...]) -> str:
    return ", ".join(demands) or "nothing"
