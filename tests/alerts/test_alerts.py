"""How alerts are caused, without causing one: none is left out, and the rules with shorter times are the same rules."""

from __future__ import annotations

from dataclasses import replace

import yaml

from tests.alerts.causes import ACTS
from tests.alerts.table import Seen, page, quiet_row, quiet_rows, told
from tests.alerts.world import FACTOR, hurried
from tests.deploy.monitoring import DIRECTORY, HOME, rules


def test_every_alert_is_caused() -> None:
    caused = [alert for act in ACTS for alert in act.alerts]
    assert sorted(caused) == sorted(rules())


def test_the_page_has_every_alert_and_what_it_was_caused_by() -> None:
    text = (HOME / "tests" / "ALERTS.md").read_text()
    took_s = told(text)
    assert took_s.keys() == rules().keys()
    assert text == page(took_s, quiet_rows(text)), "run `make alerts`"


def test_a_run_without_faults_adds_a_row_and_the_others_stay() -> None:
    seen = Seen(60.0, 2, [8.0, 12.0], late_s=0.051, sync_s=0.2, pending_s={"LoopLate": 45.0}, fired=[])
    first = quiet_row(seen, 1_000, "2026-11-28", "abc1234")
    assert first.startswith("| 2026-11-28 | abc1234 | 60 | 1,000 | 2 | 10.0 / 12.0 | 51 ms | 200 ms |")
    assert first.endswith("| `LoopLate` 45 s | none |\n")
    fired = quiet_row(replace(seen, fired=["LoopLate"]), 1_000, "2026-11-28", "abc1234")
    assert fired.endswith("| **`LoopLate`** |\n")
    text = page({"BrokerDown": 3.0}, [first])
    assert told(text) == {"BrokerDown": 3.0}
    assert quiet_rows(page(told(text), [*quiet_rows(text), fired])) == [first, fired]


def test_rules_with_shorter_times_are_the_same_but_for_the_times() -> None:
    document = yaml.safe_load((DIRECTORY / "alerts.yml").read_text())
    shorter = {rule["alert"]: rule for rule in hurried(document)["groups"][0]["rules"]}
    assert shorter.keys() == rules().keys()
    assert shorter["UnderReplicated"]["for"] == f"{600 // FACTOR}s"
    assert shorter["UnderReplicated"]["expr"] == rules()["UnderReplicated"]["expr"]
    assert shorter["DiskFullInFourHours"]["expr"] == "predict_linear(tritonmq_disk_free_bytes[120s], 4 * 120) < 0"
    assert "delta(tritonmq_group_lag_seconds[20s])" in shorter["GroupFallsBehind"]["expr"]
    assert "> 10" in shorter["GroupFallsBehind"]["expr"]
    assert shorter["FsyncSlow"]["expr"].endswith("> 0.25")
    assert "0.8 *" in shorter["GroupWillLoseRecords"]["expr"]
