"""What counts as a hole, and what as a whole document of the packages."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from release.environments import Failed
from release.supply import EXCEPTIONS, KnownHole, check_sbom, exceptions, locked, verdict

TODAY = datetime.date(2026, 12, 1)


def told(*holes: str, name: str = "grpcio", **more: Any) -> dict[str, Any]:
    vulns = [{"id": hole, "aliases": [f"alias-of-{hole}"], "fix_versions": ["9.9"]} for hole in holes]
    return {"dependencies": [{"name": name, "version": "1.0", "vulns": vulns, **more}]}


def test_a_hole_is_named_with_the_version_that_repairs_it() -> None:
    assert verdict(told(), [], TODAY) == []
    assert verdict(told("CVE-1"), [], TODAY) == ["grpcio 1.0: CVE-1, repaired in 9.9"]


@pytest.mark.parametrize("name", ["CVE-1", "alias-of-CVE-1"])
def test_an_exception_counts_until_its_day_and_for_that_hole_alone(name: str) -> None:
    allowed = [KnownHole(name, TODAY, "not called")]
    assert verdict(told("CVE-1"), allowed, TODAY) == []
    assert len(verdict(told("CVE-1", "CVE-2"), allowed, TODAY)) == 1
    assert "its exception ended on 2026-12-01" in verdict(told("CVE-1"), allowed, TODAY + datetime.timedelta(1))[0]


def test_a_package_of_which_nobody_knows_is_not_passed_over() -> None:
    document = {"dependencies": [{"name": "grpcio", "version": "1.0", "skip_reason": "not found"}]}
    assert verdict(document, [], TODAY) == ["grpcio 1.0: nobody could say whether it has a hole: not found"]


@pytest.mark.parametrize(
    "entry",
    [
        'id = "CVE-1"',
        'id = "CVE-1"\nuntil = 2026-12-31',
        'id = "CVE-1"\nuntil = "soon"\nwhy = "x"',
        "until = 2026-12-31",
    ],
)
def test_an_exception_without_a_day_or_a_reason_is_refused(entry: str) -> None:
    with pytest.raises(Failed, match="a day until which it counts"):
        exceptions(f"[[exception]]\n{entry}\n")


def test_the_exceptions_that_are_kept_can_be_read() -> None:
    exceptions(EXCEPTIONS.read_text())


def test_a_document_that_leaves_something_out_is_refused() -> None:
    one = {"name": "Ruamel_Yaml", "version": "1", "licenses": [{}]}
    assert check_sbom({"components": [one]}, {"ruamel.yaml": "1"}) == []
    assert check_sbom({"components": [{**one, "licenses": []}]}, {"ruamel.yaml": "1"}) == ["ruamel-yaml"]
    for components in ([], [{**one, "version": "2"}]):
        with pytest.raises(Failed):
            check_sbom({"components": components}, {"ruamel.yaml": "1"})


def test_the_lock_file_is_read_whole() -> None:
    versions = locked()
    assert {"grpcio", "protobuf", "kazoo", "pyarrow", "cryptography"} <= versions.keys()
    assert all(version[0].isdigit() for version in versions.values())
