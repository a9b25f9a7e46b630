"""The `tritonmq` command: its tree of commands, its exit codes, and how every error looks.

    0   done
    1   the cluster said no, or could not be asked: the reason is on standard error
    2   used wrongly: the nearest right word is on standard error
    3   not every broker can do what was asked for (cluster upgrade, cluster security raise)
    4   done, and not yet known to be in force at every broker (acl, quota, user, token, cert revoke)
    130 interrupted in the middle of something

Commands live in modules of their own and are imported when they are asked for: `tritonmq --help` loads neither Arrow
nor numpy.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from mq_cli.commands import CommandGroup
from mq_cli.interrupts import heard_from_now_on
from mq_cli.terminal import LINES, printable
from mq_protocol.errors import TritonMQError
from mq_protocol.names import nearest

PREFIX: Final = "TRITONMQ_"

_OF_CLIENTS: Final = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "BOOTSTRAP",
        "TIMEOUT_S",
        "CERTS",
        "USER",
        "TOKEN_FILE",
        "FORWARD",
        "CONFIG",
        "PROFILE",
        "FAILPOINTS",
    )
)
_GIVEN: Final = frozenset(
    f"{PREFIX}{name}" for name in ("TOPIC", "PARTITION", "OFFSET", "DELIVERIES", "FAILURES", "KEY", "LOCK_TOKEN")
)
"""What `tritonmq work` and `tritonmq lock` give to the commands that they run."""

_OF_OTHERS: Final = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_|$)|^TRITONMQ_TEST_")
"""Of tests, and of Kubernetes, which gives every container the addresses of services, by the services' names."""


def misspelt(given: Iterable[str]) -> list[tuple[str, str]]:
    """Variables that mean nothing, each with the one that was most likely meant. One that is near to none is somebody
    else's."""
    known = _OF_CLIENTS | _GIVEN
    unknown = [name for name in given if name.startswith(PREFIX) and name not in known and not _OF_OTHERS.search(name)]
    if not unknown:
        return []
    from mq_cli.settings_file import keys  # which imports all options of brokers

    known |= {key.environment for section in keys().values() for key in section.values() if key.environment}
    words = sorted(name.removeprefix(PREFIX) for name in known - _GIVEN)
    near = [(name, nearest(name.removeprefix(PREFIX), words)) for name in sorted(unknown) if name not in known]
    return [(name, PREFIX + meant) for name, meant in near if meant is not None]


DONE, REFUSED, MISUSED, INTERRUPTED = 0, 1, 2, 130

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _NobodyReads(Exception):
    """Whoever read our output has had enough of it, as in `tritonmq consume t | head`: nothing is wrong."""


class _Root(CommandGroup):
    def invoke(self, ctx: click.Context) -> Any:
        for name, meant in misspelt(os.environ):
            click.echo(printable(f"warning: the variable {name} means nothing: did you mean {meant}?", LINES), err=True)
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:  # before click sees it, to which it is a failure
            raise _NobodyReads from error
        return result


@click.group(
    cls=_Root,
    lazy={
        "dev": ("mq_cli.machines.dev:dev", "Run a local cluster in the foreground, for trials."),
        "broker": ("mq_cli.machines.broker:broker", "Run one broker."),
        "cert": ("mq_cli.access.cert:cert", "Make, show, check, renew and revoke certificates."),
        "topic": ("mq_cli.managing.topic:topic", "Create, list, describe, alter, purge and delete topics."),
        "partition": (
            "mq_cli.managing.partition:partition",
            "Describe, move or recover one partition, or hand its leadership over.",
        ),
        "produce": ("mq_cli.records.produce:produce", "Send the lines of standard input, one message per line."),
        "consume": ("mq_cli.records.consume:consume", "Write the messages of a topic to standard output."),
        "cluster": (
            "mq_cli.managing.cluster:cluster",
            "Show the brokers, balance replicas and leaders, drain a broker.",
        ),
        "transaction": (
            "mq_cli.managing.transaction:transaction",
            "Show what exactly-once queries have staged, or abort a dead query.",
        ),
        "storage": (
            "mq_cli.machines.storage:storage",
            "Look into a stopped broker's data directory: list, show, verify, export. Changes nothing.",
        ),
        "keys": ("mq_cli.access.keys:keys", "Make, list, rotate, rewrap and retire the keys that seal brokers' data."),
        "doctor": (
            "mq_cli.machines.doctor:doctor",
            "Look for what is wrong, here and in the cluster, and say what to do.",
        ),
        "bench": ("mq_cli.records.bench:bench", "Measure producing, consuming and latency, on a topic of its own."),
        "completion": ("mq_cli.completion:completion", "Write a script that completes commands and names in a shell."),
        "console": ("mq_cli.machines.console:console", "Serve pages that show the cluster to a browser."),
        "top": ("mq_cli.machines.top:top", "Watch brokers, topics by traffic, and groups by lag."),
        "config": ("mq_cli.config:config", "Show the settings that hold and where each is from; check a file."),
        "health": ("mq_cli.machines.health:health", "Exit with 0 if a broker lives, or is ready."),
        "acl": ("mq_cli.access.acl:acl", "Say who may do what: allow, deny, list, remove and check rules."),
        "quota": ("mq_cli.access.quota:quota", "Say how much each user may use: set, list and delete quotas."),
        "user": ("mq_cli.access.token:user", "Make, list and delete users who speak with a token."),
        "token": ("mq_cli.access.token:token", "Make, list and revoke the tokens of users."),
        "lock": ("mq_cli.machines.lock:lock", "Run a command while it holds a cluster-wide lock."),
        "queue": (
            "mq_cli.managing.queue:queue",
            "Declare, list, describe, alter and delete queue groups, and look at what waits in them.",
        ),
        "work": ("mq_cli.records.work:work", "Run a command for each record of a queue group."),
        "group": ("mq_cli.managing.group:group", "List, describe, reset, peek and delete groups."),
    },
    context_settings=_HELP,
)
@click.version_option(package_name="tritonmq", prog_name="tritonmq")
def cli() -> None:
    """TritonMQ: a fault-tolerant message queue for people who live in PySpark.

    Try it: `tritonmq dev`, and in another terminal `tritonmq topic create greetings`, `echo hello | tritonmq produce
    greetings`, `tritonmq consume greetings --from earliest`.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: runs a command and exits with its code."""
    if "_TRITONMQ_COMPLETE" in os.environ:  # a shell wants a word completed
        from mq_cli.completion import prepare

        prepare()
    heard_from_now_on()
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code. Errors are written to standard error, as one paragraph and without a traceback."""
    try:
        code = cli.main(args=arguments, prog_name="tritonmq", standalone_mode=False)
        return code if isinstance(code, int) else DONE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except _NobodyReads:
        # What is still buffered must go nowhere, or the interpreter would stumble over it on the way out.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):  # `2>&1 | head`
            os.dup2(nowhere, stream)
        return DONE
    except TritonMQError as error:
        click.echo(printable(f"Error: {error}", LINES), err=True)
        return REFUSED


if __name__ == "__main__":
    main()
