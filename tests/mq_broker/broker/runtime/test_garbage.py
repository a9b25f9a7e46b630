"""What the collector of garbage walks over in a broker: counted, in a process of its own, as a broker's is."""

from __future__ import annotations

import subprocess
import sys

import pytest

LONG = "spent = iter(range(1 << 40)); garbage = Garbage(lambda: next(spent), lambda: resident)"
"""Every pass takes long: as many seconds as calls of the clock."""

SHORT = "garbage = Garbage(lambda: 0, lambda: resident)"


def lines(*script: str) -> list[str]:
    """What the script prints."""
    head = ("import gc, weakref", "from mq_broker.broker.runtime.garbage import Garbage", "resident = 100 << 20")
    source = "\n".join((*head, *script))
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    return found.stdout.split()


WALKED = """
walked = []
def begins(phase, about):
    if (phase, about["generation"]) == ("start", 2):
        walked.append(len(gc.get_objects()))
gc.callbacks.append(begins)
held = [[each] for each in range(1_000_000)]
print(max(walked), len(walked))
"""


@pytest.mark.long
def test_a_pass_walks_over_what_has_come_since_the_last_one_however_much_is_held() -> None:
    walked, passes = map(int, lines(LONG, WALKED))
    assert passes > 10
    assert walked < 60_000


CIRCLE = """
class Thing: pass
thing = Thing()
thing.itself = thing
known = weakref.ref(thing)
gc.collect()
del thing
gc.collect()
"""


def test_a_circle_in_sight_is_found() -> None:
    assert lines(SHORT, CIRCLE, "print(known() is None)") == ["True"]


def test_a_circle_that_dies_out_of_sight_is_found_once_memory_has_grown_by_half() -> None:
    grown = ("resident = 405 << 20", "garbage.look()", "print(known() is None)", "resident = 407 << 20")
    more = ("garbage.look()", "print(known() is None)")
    assert lines(LONG, CIRCLE, *grown, *more) == ["False", "True"]
