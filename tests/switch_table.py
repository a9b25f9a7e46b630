"""What tests/SECURE.md shows: the same tests with the switch off and on, room by room, and what is left out and why.

python -m tests.switch_table --off OFF.xml … --on ON.xml … --table tests/SECURE.md     of what pytest --junitxml wrote
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parents[1]
START = "<!-- made by tests/switch_table.py -->\n"


@dataclass(frozen=True, slots=True)
class Ran:
    """`outcome`: passed, failed or skipped; `why` it was skipped."""

    test: str
    outcome: str
    seconds: float
    why: str = ""

    @property
    def room(self) -> str:
        """The folder below tests, or two of them where rooms have rooms."""
        folders = self.test.partition("::")[0].split("/")[:-1]
        return "/".join(folders[1:3]) or "tests"


def read(text: str) -> Iterable[Ran]:
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = (case.get("name") or "").partition("@")[0]  # pytest-xdist writes the group behind it
        test = f"{(case.get('classname') or '').replace('.', '/')}.py::{name}"
        skipped = case.find("skipped")
        failed = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if failed else "passed" if skipped is None else "skipped"
        why = "" if skipped is None else (skipped.get("message") or "").replace(f"{ROOT}/", "")
        yield Ran(test, outcome, float(case.get("time") or 0), why)


def table(off: Iterable[Ran], on: Iterable[Ran]) -> str:
    """Only tests of the second run count: the others start no brokers as processes. Of a test that ran again the last
    run counts. A room of which the first run has nothing shows dashes."""
    before = {each.test: each for each in off}
    after = {each.test: each for each in on}
    lines = [
        "| room | off: passed | failed | seconds | on: passed | failed | left out | seconds |",
        "|---|" + "---|" * 7,
    ]
    rooms = sorted({each.room for each in after.values()})
    for room in [*rooms, ""]:
        ons = [each for each in after.values() if room in ("", each.room)]
        offs = [before[each.test] for each in ons if each.test in before]
        cells = [_count(offs, "passed"), _count(offs, "failed"), _seconds(offs)] if offs else ["-"] * 3
        cells += [_count(ons, "passed"), _count(ons, "failed"), _count(ons, "skipped"), _seconds(ons)]
        lines.append(f"| {room or '**all**'} | " + " | ".join(cells) + " |")
    left_out = Counter((each.test.partition("::")[0], each.why) for each in after.values() if each.outcome == "skipped")
    lines += ["", "Left out:", ""]
    lines += [f"- {count} of `{file}`: {why}" for (file, why), count in sorted(left_out.items())]
    return "\n".join(lines) + "\n"


def _count(ran: list[Ran], outcome: str) -> str:
    return str(sum(each.outcome == outcome for each in ran))


def _seconds(ran: list[Ran]) -> str:
    return f"{sum(each.seconds for each in ran):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.switch_table", description=__doc__)
    parser.add_argument("--off", type=Path, nargs="*", default=[], metavar="XML")
    parser.add_argument("--on", type=Path, nargs="+", required=True, metavar="XML")
    parser.add_argument("--table", type=Path, required=True)
    arguments = parser.parse_args()
    off, on = ([each for path in paths for each in read(path.read_text())] for paths in (arguments.off, arguments.on))
    head, mark, _ = arguments.table.read_text().partition(START)
    assert mark, f"{arguments.table} has no line {START!r}"
    arguments.table.write_text(head + mark + table(off, on))


if __name__ == "__main__":
    main()
