"""A broker that counts and times nothing, to see what counting costs. Run like the `tritonmq` command:
`python -m benchmarks.operations.uninstrumented broker --id 1 …`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mq_cli.main import main
from mq_process.measures import Counts, Durations


def _nothing(*_: object, **__: object) -> None:
    return None


@contextmanager
def _unmeasured(*_: object) -> Iterator[None]:
    yield


if __name__ == "__main__":
    Counts.add = Durations.add = _nothing  # type: ignore[method-assign]
    Durations.measuring = _unmeasured  # type: ignore[method-assign,assignment]
    main()
