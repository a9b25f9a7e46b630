"""Observers of a partition are called in a fixed order."""

from __future__ import annotations

from collections.abc import Callable

from mq_broker.broker.host.observers import Observers


def observer(number: int, called: list[int]) -> Callable[[], None]:
    return lambda: called.append(number)


def test_observers_are_kept_in_the_order_in_which_they_came_each_once() -> None:
    called: list[int] = []
    made = [observer(number, called) for number in range(100)]
    observers = Observers()
    for each in [*made, *made[::-1]]:
        observers.add(each)
    observers.discard(made[5])
    observers.discard(made[5])
    for each in observers:
        each()
    assert called == [number for number in range(100) if number != 5]
    assert len(observers) == 99
