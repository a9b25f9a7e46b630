"""What a broker is made of, and whether something in it has a known hole: python -m release.supply sbom | audit

`sbom` writes dist/tritonmq-VERSION.cdx.json, a CycloneDX document of what `pip install tritonmq[security]` brings
along, in the versions of requirements.lock. `audit` asks pip-audit about the same packages. It fails on a hole that is
known, on one whose exception is over (release/exceptions.toml), and on a package of which nobody could say anything.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from release.dist import copied
from release.environments import ROOT, Environment, Failed, run

EXTRAS: Final = "security"
EXCEPTIONS: Final = Path(__file__).parent / "exceptions.toml"
AUDIT_S: Final = 600


@dataclass(frozen=True, slots=True)
class KnownHole:
    """A known hole that does not count until a day, and why."""

    id: str
    until: datetime.date
    why: str


def main(words: list[str]) -> int:
    if words not in (["sbom"], ["audit"]):
        raise Failed("say sbom or audit")
    with tempfile.TemporaryDirectory(prefix="tritonmq-supply-") as name:
        scratch = Path(name)
        installed = Environment(scratch / "installed", Path(sys.executable))
        installed.install("-c", pinned(scratch), f"{copied(scratch / 'tree')}[{EXTRAS}]")
        tools = Environment(scratch / "tools", Path(sys.executable))
        return write_sbom(installed, tools) if words == ["sbom"] else audit(installed, tools, scratch)


def pinned(scratch: Path) -> Path:
    """The versions of requirements.lock, without their hashes: pip takes none as constraints."""
    written = scratch / "constraints.txt"
    written.write_text("".join(f"{name}=={version}\n" for name, version in locked().items()))
    return written


def locked() -> dict[str, str]:
    """Every package of requirements.lock with its version."""
    return dict(re.findall(r"(?m)^([A-Za-z0-9_.-]+)==([^\s;\\]+)", (ROOT / "requirements.lock").read_text()))


def brought(installed: Environment) -> dict[str, str]:
    """What the installation brought along, by name: not itself, and not the tool that installs."""
    return {name: v for name, v in installed.versions().items() if name not in ("tritonmq", "pip", "setuptools")}


# ---------------------------------------------------------------- the document


def write_sbom(installed: Environment, tools: Environment) -> int:
    tools.install("cyclonedx-bom")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    path = ROOT / "dist" / f"tritonmq-{version}.cdx.json"
    path.parent.mkdir(exist_ok=True)
    run(
        [
            *(tools.command("cyclonedx-py"), "environment", "--output-reproducible"),
            *("--pyproject", ROOT / "pyproject.toml", "--of", "JSON", "-o", path, installed.python),
        ],
        timeout_s=AUDIT_S,
    )
    unlicensed = check_sbom(json.loads(path.read_text()), brought(installed))
    print(path.relative_to(ROOT))
    if unlicensed:
        print(f"their metadata have no licence that the document could name: {', '.join(unlicensed)}", file=sys.stderr)
    return 0


def check_sbom(document: Mapping[str, Any], installed: Mapping[str, str]) -> list[str]:
    """Packages of which it has no licence. Raises `Failed` if it does not say what is installed."""
    told = {canonical(each["name"]): each for each in document["components"]}
    missing = [name for name, version in installed.items() if told.get(canonical(name), {}).get("version") != version]
    if missing:
        raise Failed(f"the document does not have {', '.join(sorted(missing))}")
    return sorted(name for name in map(canonical, installed) if not told[name].get("licenses"))


def canonical(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


# ---------------------------------------------------------------- known holes


def audit(installed: Environment, tools: Environment, scratch: Path) -> int:
    tools.install("pip-audit")
    listed = scratch / "installed.txt"
    listed.write_text("".join(f"{name}=={version}\n" for name, version in sorted(brought(installed).items())))
    command = [tools.command("pip-audit"), "-r", listed, "--no-deps", "--disable-pip", "-f", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_S, check=False)
    try:
        document = json.loads(done.stdout)
    except ValueError as error:
        raise Failed(f"pip-audit did not answer: {done.stderr[-2000:]}") from error
    wrong = verdict(document, exceptions(EXCEPTIONS.read_text()), datetime.datetime.now(datetime.UTC).date())
    if wrong:
        raise Failed("\n".join(["", *wrong]))
    print(f"{len(document['dependencies'])} packages, no known hole")
    return 0


def exceptions(text: str) -> list[KnownHole]:
    """Raises `Failed` for one without a day or a reason."""
    found = []
    for each in tomllib.loads(text).get("exception", []):
        if each.keys() != {"id", "until", "why"} or type(each["until"]) is not datetime.date or not each["why"]:
            raise Failed(f"{EXCEPTIONS.name}: an exception has an id, a day until which it counts, and a why: {each}")
        found.append(KnownHole(each["id"], each["until"], each["why"]))
    return found


def verdict(document: Mapping[str, Any], allowed: Iterable[KnownHole], today: datetime.date) -> list[str]:
    """What is wrong, in words; empty if nothing is."""
    until = {each.id: each.until for each in allowed}
    wrong = []
    for each in document["dependencies"]:
        name = f"{each['name']} {each.get('version', '')}".strip()
        if "skip_reason" in each:
            wrong.append(f"{name}: nobody could say whether it has a hole: {each['skip_reason']}")
        for hole in each.get("vulns", []):
            names = {hole["id"], *hole.get("aliases", [])}
            days = [until[known] for known in names if known in until]
            if any(day >= today for day in days):
                continue
            fixed = ", ".join(hole.get("fix_versions", [])) or "no version yet"
            over = f"; its exception ended on {max(days)}" if days else ""
            wrong.append(f"{name}: {hole['id']}, repaired in {fixed}{over}")
    return wrong


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Failed as error:
        sys.exit(f"release.supply: {error}")
