"""Rows of the wire as the values that applications get: what has the same name in both is written down nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

T = TypeVar("T")

_Plan = tuple[tuple[str, Callable[[Any], Any] | None], ...]
_PLANS: Final[dict[tuple[type, type], _Plan]] = {}


def described(kind: type[T], told: object, /, **given: Any) -> T:
    """A `kind`, which is a dataclass, of what `told` has under the names of its fields: lists become tuples, maps
    become dicts in order of their keys. `given`: the fields that `told` has not, or has otherwise.

    Raises `TypeError` if a field without a default is in neither.
    """
    plan = _PLANS.get((kind, type(told)))
    if plan is None:
        plan = _PLANS[kind, type(told)] = _plan(kind, told)
    for name, plain in plan:
        if name not in given:
            value = getattr(told, name)
            given[name] = value if plain is None else plain(value)
    return kind(**given)


def _plan(kind: Any, told: object) -> _Plan:
    return tuple((each.name, _plainly(getattr(told, each.name))) for each in fields(kind) if hasattr(told, each.name))


def _plainly(value: object) -> Callable[[Any], Any] | None:
    if isinstance(value, Mapping):
        return lambda entries: dict(sorted(entries.items())) if entries else {}
    return tuple if isinstance(value, Sequence) and not isinstance(value, str | bytes) else None
