"""The reference: settings of topics, options of Spark, rights, commands, errors and the Python API, each written from
the code itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Final

import click

import mq_client
import mq_spark
from mq_cli.main import cli
from mq_protocol.access.rights import rights_table
from mq_protocol.errors import TritonMQError
from mq_protocol.names import SETTINGS
from mq_spark.planning.option_table import OPTIONS

GENERATED: Final = "This page is generated from the code.\n"


def cell(text: str) -> str:
    """Text as it stands in a cell of a table: on one line, and with no link or column of its own."""
    return " ".join(text.split()).replace("|", "\\|").replace("[", "\\[").replace("<", "&lt;")


def table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cell(each) for each in line) + " |" for line in lines) + "\n"


# ------------------------------------------------------------------ settings and options


def topic_settings() -> str:
    rows = (
        (f"`{each.name}`", each.default, each.allowed, "yes" if each.live else "no", each.reason)
        for each in SETTINGS.values()
    )
    head = (
        "`tritonmq topic create NAME --set NAME=VALUE` and `Admin.create_topic(..., NAME=VALUE)` take these settings."
    )
    live = (
        "`tritonmq topic alter` changes those that are marked, while the topic is in use. [Topics](../topics.md) "
        "explains them."
    )
    return f"# Topic settings\n\n{GENERATED}\n{head} {live}\n\n" + table(
        ("setting", "default", "allowed", "can be changed", "meaning"), rows
    )


def spark_options() -> str:
    rows = ((f"`{each.name}`", each.side, each.only or "both", each.default, each.meaning) for each in OPTIONS)
    head = (
        'Options of `format("tritonmq")`. An option that is unknown, or belongs to the other side, is refused by name.'
    )
    more = "[Spark's Kafka connector and this one](../kafka-options.md) compares them with Kafka's."
    return f"# Spark options\n\n{GENERATED}\n{head} {more}\n\n" + table(
        ("option", "side", "stream or batch", "default", "meaning"), rows
    )


def rights() -> str:
    head = "[Rights](../rights.md) explains them. Every name in a request is judged."
    rows = ((f"`{method}`", needs) for method, needs in rights_table())
    return f"# What each request needs\n\n{GENERATED}\n{head}\n\n" + table(("method", "needs"), rows)


# ------------------------------------------------------------------ commands


def commands() -> str:
    """Every command with its arguments and options, the broker's included."""
    head = (
        "`tritonmq COMMAND --help` shows the same. "
        "Every command of a cluster takes `--bootstrap`, or reads `TRITONMQ_BOOTSTRAP`."
    )
    codes = (
        "The exit code is 0 when it is done, 1 when the cluster refused it or could not be asked, 2 when it was used "
        "wrongly."
    )
    return f"# Commands\n\n{GENERATED}\n{head} {codes}\n\n" + "".join(_command(cli, "tritonmq"))


def broker_options() -> str:
    broker = cli.get_command(click.Context(cli), "broker")
    assert broker is not None
    head = "[Operations](../operations.md) says which of them a cluster needs."
    return f"# Broker options\n\n{GENERATED}\n{head}\n\n" + "".join(_command(broker, "tritonmq broker"))


def _command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    if path != "tritonmq":
        yield f"{'##' if path.count(' ') == 1 else '###'} {path}\n\n"
    yield inspect.cleandoc(command.help or "").replace("\b\n", "") + "\n\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _command(found, f"{path} {name}")
        return
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n\n"
    records = (
        record
        for each in command.params
        if isinstance(each, click.Option)
        for record in [each.get_help_record(context)]
    )
    yield table(("option", "meaning"), ((f"`{record[0]}`", record[1]) for record in records if record)) + "\n"


# ------------------------------------------------------------------ errors and the API


def errors() -> str:
    """Each class with its meaning. Raises `ValueError` for one that says nothing of itself."""
    head = (
        "Every error derives from `TritonMQError`. `retriable`: the same request may succeed later. "
        "`definite`: the outcome is known. "
        "After an error that is not definite the operation may have happened: ask again with the same UUID."
    )
    return f"# Errors\n\n{GENERATED}\n{head}\n\n" + table(
        ("error", "kind", "retriable", "definite", "meaning"), _errors()
    )


def _errors() -> Iterator[tuple[str, ...]]:
    for name in mq_client.__all__:
        found = getattr(mq_client, name)
        if inspect.isclass(found) and issubclass(found, TritonMQError):
            if not found.__dict__.get("__doc__"):
                raise ValueError(f"{name} has no docstring: say what it means and what to do")
            yes = {True: "yes", False: "no"}
            kind = found.__mro__[1].__name__ if found is not TritonMQError else ""
            yield (
                f"`{name}`",
                f"`{kind}`" if kind else "",
                yes[found.retriable],
                yes[found.definite],
                inspect.cleandoc(found.__doc__),
            )


def client() -> str:
    """The classes of `tritonmq` that need no Spark, those with methods first."""
    names = [name for name in mq_client.__all__ if not _is_error(getattr(mq_client, name))]
    return _api(
        "Python API", "`from tritonmq import ...` gives all of these.", dict.fromkeys(names, mq_client.__name__)
    )


def spark() -> str:
    return _api(
        "Spark API",
        "The data source itself needs no import. These are helpers.",
        dict.fromkeys(mq_spark.__all__, "mq_spark"),
    )


def _is_error(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, BaseException)


def _api(title: str, head: str, names: Mapping[str, str]) -> str:
    return f"# {title}\n\n{head}\n\n" + "".join(f"::: {_home(package, name)}\n\n" for name, package in names.items())


def _home(package: str, name: str) -> str:
    """Where a name is defined: `mq_client.producer.Producer`."""
    found = getattr(__import__(package), name)
    return f"{getattr(found, '__module__', package)}.{name}" if hasattr(found, "__module__") else f"{package}.{name}"
