"""`tritonmq cluster log-level`: what one broker logs, for a while."""

from __future__ import annotations

import click

from mq_cli.connection import Connection, connection_options
from mq_cli.output import Seconds, say


@click.command("log-level")
@click.argument("broker", type=click.IntRange(min=1))
@click.argument("level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--logger", default="mq_broker", show_default=True, help="A part of it, e.g. mq_broker.rpc.links.")
@click.option("--for", "seconds", type=Seconds(min=1, max=86_400), default=600.0, show_default=True, metavar="SECONDS")
@connection_options
def log_level(broker: int, level: str, logger: str, seconds: float, connection: Connection) -> None:
    """Have BROKER log from LEVEL on. It goes back by itself."""
    with connection.admin() as admin:
        admin.set_log_level(broker, level, logger=logger, seconds=int(seconds))
    say(f"broker {broker} logs {logger} from {level} on for {seconds:g} s")
