"""What happened and when, printed as it happens."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass
class Timeline:
    """Owns the clock of the demo. Safe to use from several threads."""

    console: Console
    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def say(self, text: str, *, style: str = "") -> None:
        with self._lock:
            self.console.print(
                f"[dim]{self.elapsed():6.1f} s[/dim]  {f'[{style}]{text}[/{style}]' if style else text}",
                highlight=False,
            )


def facts_table(title: str, facts: list[tuple[str, str]]) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in facts:
        table.add_row(name, value)
    return table
