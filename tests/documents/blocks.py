"""Reads the fenced code of a Markdown document, in the order in which a reader meets it. Pure.

The first word after the fence is the language, as every viewer of Markdown knows it; a second word says how it is run:

    ```shell             pasted into one shell that lives as long as the document
    ```shell background  pasted into a terminal of its own; the next output is waited for, then the document goes on
    ```shell elsewhere   not run: for another machine, or done by another test; so is `python elsewhere`
    ```python            pasted into one Python interpreter that lives as long as the document
    ```text              what the block before it prints

In an output `…` stands for anything within a line, and a line of `…` alone for any number of lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LANGUAGES = ("shell", "python")
OUTPUT = "text"
BACKGROUND, ELSEWHERE = "background", "elsewhere"


@dataclass(frozen=True)
class Block:
    """One block of code with the output that the document shows for it; None if it shows none."""

    language: str
    how: str
    code: str
    line: int
    output: str | None = None


def blocks(text: str) -> list[Block]:
    """Those in a language that can be run. Raises `ValueError` for an output without code, or an unknown second
    word."""
    found: list[Block] = []
    for match in re.finditer(r"^```([^\n`]*)\n(.*?)^```\s*$", text, re.MULTILINE | re.DOTALL):
        language, _, how = match[1].strip().partition(" ")
        line = text.count("\n", 0, match.start()) + 1
        if language in LANGUAGES:
            if how not in ("", BACKGROUND, ELSEWHERE):
                raise ValueError(f"line {line}: {how!r} is not a way to run a block")
            found.append(Block(language, how, match[2], line))
        elif language == OUTPUT and how == "":
            if not found or found[-1].output is not None:
                raise ValueError(f"line {line}: this output follows no code")
            last = found.pop()
            found.append(Block(last.language, last.how, last.code, last.line, match[2]))
    return found


def agrees(shown: str, printed: str) -> bool:
    """Whether what was printed is what the document shows. One blank is as good as many: listings have tabs in a pipe,
    and are aligned on a terminal."""
    pattern = []
    for line in _lines(shown):
        if line.strip() == "…":
            pattern.append(r"(?:.*\n)*?")
        else:
            pattern.append(r"[^\n]*?".join(re.escape(part) for part in line.split("…")) + "\n")
    lines = "".join(line + "\n" for line in _lines(printed))
    return re.fullmatch("".join(pattern), lines) is not None


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.strip().splitlines()]
