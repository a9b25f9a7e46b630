"""The README as a package index shows it: there no link of this repository's own leads anywhere, so each is made
absolute.

Where the repository is read is one line of pyproject.toml, `[tool.tritonmq] home`. While that is empty, links become
plain text.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

_LINK: Final = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?:|mailto:|#)(?P<target>[^)\s]+)\)")
_FENCE: Final = re.compile(r"^```", re.MULTILINE)


def description(readme: str, home: str) -> str:
    """The text with every relative link led to `home`'s files (GitHub's layout, branch main), or with links' text alone
    if `home` is empty. What stands in fenced code is left as it is.
    """
    pieces = _FENCE.split(readme)
    pieces[::2] = [_LINK.sub(lambda found: _absolute(found, home.rstrip("/")), piece) for piece in pieces[::2]]
    return "```".join(pieces)


def urls(home: str) -> dict[str, str]:
    """The project's addresses for its metadata; none while `home` is empty."""
    home = home.rstrip("/")
    if not home:
        return {}
    return {
        "Homepage": home,
        "Documentation": f"{home}/tree/main/docs",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


def _absolute(found: re.Match[str], home: str) -> str:
    if not home:
        return found["text"]
    path, _, anchor = found["target"].partition("#")
    folder = path.endswith("/") or (not PurePosixPath(path).suffix and PurePosixPath(path).name != "LICENSE")
    kind = "raw" if found["image"] else "tree" if folder else "blob"
    return f"{found['image']}[{found['text']}]({home}/{kind}/main/{path.rstrip('/')}{'#' + anchor if anchor else ''})"
