"""CRASHES.md: which crashes were injected where, and what came of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.spark.crashes.cases import JOBS, MODES, POINTS, Case
from tests.spark.crashes.ground import Result, totals

_WORDS = {
    "before_stage": "before staging",
    "during_stage": "during staging",
    "after_stage": "after staging",
    "before_decide": "before the decision",
    "before_publish": "decided, nothing published",
    "between_publishes": "published in one topic of two",
    "before_answer": "published, the answer not sent",
    "after_decide": "answered, before Spark knows",
    "before_commit_file": "before Spark's commit file",
    "before_offset_log": "before the offset log's end",
}


def table(results: Sequence[Result], seconds: float, lives: int, asked: int, seed: int, cores: int) -> str:
    crashes, duplicates, losses, others = totals(results)
    others_word = "no other failure" if not others else f"**{others} other failures**"
    early = f" of {asked} (the run was ended early)" if crashes < asked else ""
    hangs = sum(not result.case.is_crash for result in results)
    return f"""# Exactly once, under crashes

    make crashes CRASHES={asked} SEED={seed}

{crashes} injected crashes{early}, {duplicates} duplicates, {losses} losses, {others_word}.
{seconds / 60:.0f} minutes on {cores} cores, {lives} lives of drivers, {hangs} hanging tasks beside the crashes.

Each crash is a `kill -9` (or an answer dropped) while a process is held at the point. Afterwards the output equals the
input as a multiset, and in each output partition no micro-batch stands behind a later one. Before the decision no row
may be visible; after it all must become so while no driver lives. Spark runs in threads of the driver (`local`), on two
executors that it starts (`local-cluster[2,1,1024]`), or on a master and two workers with speculation on (`standalone`).
The queries copy a topic into one or two, or files into one or two through a repartition that deals the rows out
differently each time. `python -m tests.spark.crashes --help` shows how one case is run again, and how to plant a fault
(`--forgetful`, a new query id at each start): a driver killed after the decision then leaves every row of its
micro-batch twice, and the harness says so.

| held at | killed | {" | ".join(MODES)} | duplicates | losses |
|---|---|{"---:|" * (len(MODES) + 2)}
{_lines(results)}| **all** | | {_by_mode(results)} | {duplicates} | {losses} |

By kind of query: {_by_job(results)}.
"""


def _lines(results: Iterable[Result]) -> str:
    by_place: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        by_place.setdefault((result.case.point, result.case.victim), []).append(result)
    lines = ""
    for point, victim in sorted(by_place, key=lambda place: (POINTS.index(place[0]), place[1])):
        mine = by_place[point, victim]
        _, duplicates, losses, _ = totals(mine)
        lines += f"| {_WORDS[point]} | {_victim(mine[0].case)} | {_by_mode(mine)} | {duplicates} | {losses} |\n"
    return lines


def _victim(case: Case) -> str:
    return case.victim if case.is_crash else "nobody: the task hangs, its speculative copy wins"


def _by_mode(results: Sequence[Result]) -> str:
    return " | ".join(str(sum(result.case.mode == mode for result in results) or "") for mode in MODES)


def _by_job(results: Sequence[Result]) -> str:
    return ", ".join(f"{job} {sum(result.case.job == job for result in results)}" for job in JOBS)
