"""Each command of `tritonmq` in a shell block of README and docs can be pasted: there is such a command, with these
options, all that it needs and no more arguments, and what is said about it stands behind a `#`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mq_cli.main import cli
from tests.documents.blocks import blocks
from tests.documents.test_documents import PAGES, ROOT

REDIRECTED = re.compile(r"\s[0-9]>+&?\S*")
"""`2>b1.log`: the number is not a word of its own."""

ENDS = {"|", "||", "&", "&&", ";", "<", "<<", "<<<", ">", ">>", "(", ")"}


def commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, words) of each command of `tritonmq` in shell blocks, up to a pipe or a comment."""
    for block in blocks(text):
        if block.language != "shell":
            continue
        joined, first = "", 0
        for number, line in enumerate(block.code.splitlines(), block.line + 1):
            first = first if joined else number
            joined += line
            if joined.endswith("\\"):
                joined = joined[:-1] + " "
                continue
            command, joined = joined, ""
            if command.startswith("tritonmq "):
                yield first, words(command)


def words(command: str) -> list[str]:
    lexer = shlex.shlex(REDIRECTED.sub(" ", command), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[str] = []
    for word in lexer:
        if word in ENDS:
            if word[0] in "<>" and found[-1].isdigit():  # 2>file
                found.pop()
            break
        found.append(word)
    return found[1:]


def fault(given: list[str]) -> str:
    """Why the words are no command; empty if they are one."""
    command: click.Command = cli
    context = click.Context(command, info_name="tritonmq")
    while isinstance(command, click.Group):
        if not given or given[0].startswith("-"):
            return ""  # tritonmq --version
        found = command.get_command(context, given[0])
        if found is None:
            return f"there is no command {given[0]!r}"
        command, given = found, given[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    try:
        values, left, _ = command.make_parser(context).parse_args(list(given))
    except click.UsageError as error:
        return error.format_message()
    if "…" in given:  # more is to be written there
        return ""
    needed = [each for each in command.params if each.required and not each.envvar]  # the environment may have it
    if lacking := [each.opts[0] for each in needed if not values.get(each.name or "")]:
        return f"it lacks {', '.join(lacking)}"
    if left and not command.allow_extra_args:
        return f"it takes no {left!r}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_documents_can_be_pasted(page: Path) -> None:
    wrong = {line: why for line, given in commands(page.read_text()) if (why := fault(given))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("tritonmq cluster status    who lives", "takes no ['who', 'lives']"),
        ("tritonmq topic purge NAME [--before 7d]", "[--before"),
        ("tritonmq topic purge NAME --befor 7d", "--befor"),
        ("tritonmq topics list", "no command 'topics'"),
        ("tritonmq cert create-broker --id 101", "lacks --host"),
        ("tritonmq top   # it's drawn", ""),
        ("tritonmq lock NAME --wait 60 -- COMMAND --all", ""),
        ("tritonmq produce flights <<END", ""),
        ("tritonmq broker --id 1 --listen h:1 2>b1.log &", ""),
    ],
)
def test_what_cannot_be_pasted_is_seen(command: str, why: str) -> None:
    found = [fault(given) for _, given in commands(f"```shell elsewhere\n{command}\n```\n")]
    assert len(found) == 1
    assert (why in found[0]) if why else found[0] == ""


def test_a_command_over_several_lines_is_one() -> None:
    text = "```shell\ntritonmq topic create a \\\n  --partitions 3\ntritonmq top\n```\n"
    assert list(commands(text)) == [(2, ["topic", "create", "a", "--partitions", "3"]), (4, ["top"])]
