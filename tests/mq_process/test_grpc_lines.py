"""What gRPC's core may write in a broker's process: nothing, unless the environment says a level."""

from __future__ import annotations

import pytest

from mq_process.grpc_lines import VARIABLE, write_nothing


@pytest.mark.parametrize(("given", "level"), [(None, "NONE"), ("ERROR", "ERROR"), ("DEBUG", "DEBUG")])
def test_the_environment_has_the_last_word(given: str | None, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {} if given is None else {VARIABLE: given}
    monkeypatch.setattr("os.environ", environment)
    write_nothing()
    assert environment[VARIABLE] == level
