"""The queue groups of one partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from mq_broker.core.work.state import FrozenWork, WorkState
from mq_broker.core.work.steps import Begin, End, LeaseId, Step

FrozenGroups: TypeAlias = tuple[tuple[str, FrozenWork], ...]


class WorkGroups(dict[str, WorkState]):
    """Owns the state of each queue group, by its name."""

    @classmethod
    def thawed(cls, frozen: Iterable[tuple[str, FrozenWork]]) -> WorkGroups:
        """Raises `ValueError` if a state contradicts itself."""
        return cls((group, WorkState.thawed(each)) for group, each in frozen)

    def frozen(self) -> FrozenGroups:
        """All of them as one value."""
        return tuple((group, state.frozen()) for group, state in self.items())

    def apply(
        self, group: str, life: int, steps: Sequence[Step], leader_epoch: int, index: int, log: tuple[int, int]
    ) -> None:
        """Take in a committed entry. `log`: its first offset, and one past its last. Lives ascend: a step of another
        life does nothing, but `Begin` of a later one."""
        start, end = log
        for number, step in enumerate(steps):
            state = self.get(group)
            if isinstance(step, Begin):
                if state is None or state.life < life:
                    base = min(max(step.offset, start), end)
                    begun = self[group] = WorkState(life, base, step.recovery, (leader_epoch, index))
                    for low, high in step.lost:
                        begun.skip(max(low, base), min(high, end))
            elif state is not None and state.life == life:
                if isinstance(step, End):
                    del self[group]
                else:
                    state.apply(step, LeaseId(leader_epoch, index, number), end)

    def recover(self, recovery: int, at: tuple[int, int]) -> None:
        """The log was cut by a recovery: leases that were made before it end uncharged. `at`: epoch and index of the
        entry that says so."""
        for state in self.values():
            state.recover(recovery, at)

    def skip(self, first: int, end: int) -> None:
        """No record has these offsets, and none will."""
        for state in self.values():
            state.skip(first, end)

    def pass_to(self, start: int) -> None:
        """The log begins there from now on."""
        for state in self.values():
            state.pass_to(start)
