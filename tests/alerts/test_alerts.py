"""How alerts are caused, without causing one: none is left out, and the rules with shorter times are the same rules."""

from __future__ import annotations

import yaml

from tests.alerts.causes import ACTS, NOT_CAUSED
from tests.alerts.table import page, told
from tests.alerts.world import FACTOR, hurried
from tests.deploy.monitoring import DIRECTORY, HOME, rules


def test_every_alert_is_caused_or_it_is_said_why_not() -> None:
    caused = [alert for act in ACTS for alert in act.alerts]
    assert sorted([*caused, *NOT_CAUSED]) == sorted(rules())


def test_the_page_has_every_alert_and_what_it_was_caused_by() -> None:
    text = (HOME / "tests" / "ALERTS.md").read_text()
    took_s = told(text)
    assert took_s.keys() == rules().keys() - NOT_CAUSED.keys()
    assert text == page(took_s), "run `make alerts`"


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
