"""Golden scripts: behaviour as a conversation that can be read. Each file's name is the sentence that it proves.

A script is blocks of commands, `----`, and what came of them. `REWRITE=1 pytest tests/mq_broker/core/test_scripts.py`
writes what comes today; read the difference before committing it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

_here = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("core_world", _here / "world.py")
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules["core_world"] = _module
_spec.loader.exec_module(_module)
World = _module.World

SCRIPTS = sorted((_here / "scripts").glob("*.txt"))


def run(text: str) -> str:
    """The script with what came of each block today."""
    blocks = text.rstrip("\n").split("\n\n")
    world = World()
    done = []
    for block in blocks:
        lines = block.split("\n")
        if all(line.startswith("#") for line in lines):
            done.append(block)
            continue
        commands = lines[: lines.index("----")] if "----" in lines else lines
        out: list[str] = []
        for line in commands:
            if line.startswith("world"):
                world = World(**{k: int(v) for k, v in (w.split("=") for w in line.split()[1:])})
                out.append("ok")
            elif not line.startswith("#"):
                out += world.command(line)
        done.append("\n".join([*commands, "----", *out]))
    return "\n\n".join(done) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    today = run(path.read_text())
    if os.environ.get("REWRITE"):
        path.write_text(today)
    assert today == path.read_text()
