"""The tutorial: short enough to be done in a quarter of an hour, and what happens in it is what it says.

It runs for minutes and needs Prometheus, so `make tutorial` runs it; the rest is looked at with every test.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.deploy.monitoring import PROGRAMS, rules
from tests.documents.blocks import ELSEWHERE, OUTPUT, agrees, blocks
from tests.documents.reader import Reader
from tests.documents.test_documents import ROOT, TUTORIAL
from tests.switch import plain_text

MINUTES_MAX = 15.0
WORDS_A_MINUTE = 200.0
"""A reader of a technical text in a language that is not the first one."""

TYPED_A_MINUTE = 200.0
"""Characters, by somebody who types each of them and pastes nothing."""

SWITCH = "TRITONMQ_TEST_TUTORIAL"


class Newcomer(Reader):
    """Pastes the blocks where the metrics, the console and Prometheus have ports too."""

    PORTS = (*range(7400, 7410), *range(7420, 7423), *range(7440, 7450), 7480, 7495)
    BLOCK_S = 600.0  # beside much other work Spark took more than 150 s to start


def minutes(text: str) -> float:
    """How long it takes to read the page, outputs too, and to type its code."""
    code = sum(len(block.code) for block in blocks(text))
    read = re.sub(rf"^```(?!{OUTPUT})\w.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    read = re.sub(r"^```.*$", "", read, flags=re.MULTILINE)
    return len(re.findall(r"\w\S*", read)) / WORDS_A_MINUTE + code / TYPED_A_MINUTE


def test_it_takes_a_quarter_of_an_hour_to_read_and_type() -> None:
    assert 5 < minutes(TUTORIAL.read_text()) <= MINUTES_MAX


def test_words_and_characters_count() -> None:
    page = "one two three four\n```shell\nabcdefghi\n```\n```text\nfive six\n```\n"
    assert minutes(page) == pytest.approx(6 / WORDS_A_MINUTE + 10 / TYPED_A_MINUTE)


def test_its_code_can_be_read_by_a_shell_and_by_python() -> None:
    found = blocks(TUTORIAL.read_text())
    assert {block.language for block in found} == {"shell", "python"}
    for block in found:
        if block.language == "python":
            compile(block.code, f"tutorial.md, line {block.line}", "exec")
        else:
            read = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, check=False)
            assert read.returncode == 0, f"line {block.line}: {read.stderr}"


def test_python_at_a_prompt_prints_nothing_but_what_is_shown() -> None:
    """There each expression's value is printed, in a loop too: a hundred lines of futures, before."""
    for block in blocks(TUTORIAL.read_text()):
        if block.language == "python":
            for node in ast.walk(ast.parse(block.code)):
                if isinstance(node, ast.Expr):
                    call = ast.unparse(node.value).partition("(")[0]
                    assert call in ("print", "query.processAllAvailable"), f"line {block.line}: {call}"


def test_the_broker_that_is_brought_back_is_ended_as_it_says(tmp_path: Path) -> None:
    text = TUTORIAL.read_text()
    (block,) = [each.code for each in blocks(text) if "broker-3.sh" in each.code]
    assert "`kill $!` ends this broker" in text
    (tmp_path / "tritonmq").write_text("#!/bin/sh\necho $$ >pid\nexec sleep 600\n")
    (tmp_path / "tritonmq").chmod(0o755)
    (tmp_path / "dev.log").write_text("broker 3 was ended\n  bring it back with: tritonmq broker --id 3 --data d\n")
    begun = "\n".join(block.splitlines()[:2])
    script = f"{begun}\nuntil [ -s pid ]; do sleep 0.05; done\nkill $!\nwait $!\n! kill -0 $(cat pid)\n"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, timeout=120)
    if ran.returncode != 0:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert ran.returncode == 0, "the shell around the broker has ended, and the broker runs on"


def test_it_counts_the_rules_that_there_are() -> None:
    assert re.findall(r"(\d+) rules found", TUTORIAL.read_text()) == [str(len(rules()))]


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.timeout(1_800)
@plain_text("it pastes plain text, as tests/documents/test_documents.py does")
def test_it_shows_what_a_newcomer_sees(tmp_path: Path) -> None:
    if not os.environ.get(SWITCH):
        pytest.skip("`make tutorial` runs it")
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "deploy").symlink_to(ROOT / "deploy")
    with Newcomer(folder, PROGRAMS) as newcomer:
        for block in blocks(TUTORIAL.read_text()):
            printed = newcomer.paste(block)
            shown = newcomer.expected(block)
            assert block.how == ELSEWHERE or agrees(shown, printed), (
                f"line {block.line}: the tutorial shows\n{shown}\nbut it printed\n{printed}\n{newcomer.errors()}"
            )
