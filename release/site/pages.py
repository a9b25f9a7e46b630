"""Markdown of the repository as pages of the site. Pure: text in, text out.

The same files are read in two places. In the repository a link leads to any file; on the site it can lead to another
page only. So each relative link is looked up: one that is a page leads there, any other becomes text, or leads to the
repository's home if pyproject.toml names one.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Final

_LINK: Final = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?:|mailto:|#)(?P<target>[^)\s]+)\)")
_FENCED: Final = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)
_HOW_TO_RUN: Final = re.compile(r"^```(\w+) \w+\s*$", re.MULTILINE)
_HEADING: Final = re.compile(r"^(#+) ", re.MULTILINE)

README_SECTIONS: Final[Mapping[str, str]] = {
    "quick-start": "quickstart.md",
}
"""Sections of the README, by anchor, that are a page of their own, or a part of one."""


def sections(markdown: str) -> dict[str, str]:
    """The text of each section of the second level by its title; what stands before the first one has the title ''."""
    found: dict[str, list[str]] = {"": []}
    title, fenced = "", False
    for line in markdown.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        if line.startswith("## ") and not fenced:
            title = line.removeprefix("## ").strip()
            found[title] = []
        else:
            found[title].append(line)
    return {name: "\n".join(lines).strip() + "\n" for name, lines in found.items()}


def chosen(markdown: str, title: str, *names: str) -> str:
    """A page of those sections, each under its own heading but for the first, whose heading is the page's. Raises
    `KeyError`."""
    there = sections(markdown)
    first, *others = names
    opening = re.sub(r"\A# .*\n+", "", there[first])
    return f"# {title}\n\n{opening}" + "".join(f"\n## {name}\n\n{there[name]}" for name in others)


def as_page(markdown: str, origin: str, source: str, pages: Mapping[str, str], home: str = "") -> str:
    """The text of one page.

    `origin`: where the text stands in the repository. `source`: the page's path on the site. `pages`: the path on the
    site of each file of the repository that is a page. `home`: where the repository is read, or empty.
    """
    text = _HOW_TO_RUN.sub(r"```\1", markdown)
    out, at = [], 0
    for fenced in _FENCED.finditer(text):
        out += [_linked(text[at : fenced.start()], origin, source, pages, home), fenced[0]]
        at = fenced.end()
    return "".join([*out, _linked(text[at:], origin, source, pages, home)])


def _linked(text: str, origin: str, source: str, pages: Mapping[str, str], home: str) -> str:
    def led(found: re.Match[str]) -> str:
        path, _, anchor = found["target"].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        page = README_SECTIONS.get(anchor) if target == "README.md" else None
        page = page or pages.get(target)
        if page is not None:
            there = posixpath.relpath(page, posixpath.dirname(source) or ".")
            kept = f"#{anchor}" if anchor and not (target == "README.md" and anchor in README_SECTIONS) else ""
            return f"{found['image']}[{found['text']}]({there}{kept})"
        if found["image"]:
            return found[0]
        if home:
            kind = "blob" if posixpath.splitext(target)[1] else "tree"
            return f"[{found['text']}]({home.rstrip('/')}/{kind}/main/{target})"
        if found["text"].strip("`") in target:
            return f"`{target}`"
        return f"{found['text']} (`{target}`)"

    return _LINK.sub(led, text)
