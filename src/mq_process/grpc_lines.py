"""Which lines gRPC's core writes to standard error of its own. They look like nothing else that a broker says."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "GRPC_VERBOSITY"


def write_nothing() -> None:
    """Unless the environment says a level. gRPC reads it when it is first used."""
    os.environ.setdefault(VARIABLE, "NONE")
