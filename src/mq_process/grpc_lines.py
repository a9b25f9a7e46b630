"""Which lines gRPC's core writes to standard error of its own. They look like nothing else that a program says."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "GRPC_VERBOSITY"

ERRORS: Final = "ERROR"
"""What a program that uses clients leaves to the commands that it starts: not a wish of anybody's."""


def write_errors_only() -> None:
    """Unless the environment says another level. gRPC reads it when it is first used."""
    os.environ.setdefault(VARIABLE, ERRORS)


def write_nothing() -> None:
    """As `write_errors_only`."""
    if os.environ.get(VARIABLE, ERRORS) == ERRORS:
        os.environ[VARIABLE] = "NONE"
