"""What members ask to settle in one queue group and partition, until it has an answer."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mq_broker.broker.queues.group.draft import Draft
from mq_broker.broker.queues.group.holdings import Holdings
from mq_broker.broker.queues.group.requests import Extend, Settling
from mq_broker.core.work.ranges import RANGES_MAX, joined
from mq_broker.core.work.settling import Answer, Settle
from mq_protocol.errors import OutOfOrder, TritonMQError

OVERTAKEN_S: Final = 0.5
"""For so long an acknowledgement waits for that of an earlier record of its key."""


class Unsettled:
    """Owns the requests, in the order in which they came."""

    def __init__(self) -> None:
        self._settling: OrderedDict[Settling, None] = OrderedDict()
        self._loop = asyncio.get_running_loop()

    def add(self, settling: Settling) -> None:
        self._settling[settling] = None

    def withdraw(self, settling: Settling) -> None:
        """Nobody waits for it any more: what was not judged yet is not done."""
        settling.todo.clear()
        self._settling.pop(settling, None)

    def refuse(self, error: TritonMQError) -> None:
        """All of them."""
        for settling in self._settling:
            settling.refuse(error)
        self._settling.clear()

    @property
    def unjudged(self) -> bool:
        """Whether there is something that no entry was made for yet."""
        return any(len(settling.todo) > len(settling.overtaken) for settling in self._settling)

    def take(self, draft: Draft, holdings: Holdings, now_ms: int) -> None:
        """Put them into the draft, as much as one entry may have; behind the others what has overtaken one of them."""
        for overtaken in (False, True):
            for settling in self._settling:
                for number in settling.todo:
                    if (number in settling.overtaken) is not overtaken:
                        continue
                    item = settling.items[number]
                    weight = max(len(item.ranges), 1)  # without any it takes its time all the same
                    if draft.ranges and draft.ranges + weight > RANGES_MAX:
                        return
                    draft.ranges += weight
                    if isinstance(item, Extend):
                        draft.extended.append((settling, number, holdings.extend(item, now_ms)))
                    else:
                        draft.settles.append(item)
                        draft.settlers.append((settling, number))

    def judged(self, draft: Draft, answers: Sequence[Answer]) -> None:
        """What is to be told once the draft is committed, of as many of its settles as were judged."""
        for settler, answer in zip(draft.settlers, answers, strict=False):
            if settler is not None and answer.waits:
                self._overtook(*settler, answer)
            elif settler is not None:
                settling, number = settler
                del settling.todo[number]
                lost = settling.overtaken.pop(number, ())
                draft.answers.append((settling, number, replace(answer, lost=joined(answer.lost, lost))))
        for settling, number, answer in draft.extended:
            del settling.todo[number]
            draft.answers.append((settling, number, answer))
        self._let_go()

    def _overtook(self, settling: Settling, number: int, answer: Answer) -> None:
        """What of it waits is judged with each further entry, for a while. The rest is done."""
        item = settling.items[number]
        assert isinstance(item, Settle)
        if number not in settling.overtaken:
            self._loop.call_later(OVERTAKEN_S, self._give_up, settling, number)
        settling.overtaken[number] = joined(settling.overtaken.get(number, ()), answer.lost)
        settling.items[number] = replace(item, ranges=answer.waits)

    def _give_up(self, settling: Settling, number: int) -> None:
        if number in settling.overtaken and number in settling.todo:
            del settling.todo[number]
            del settling.overtaken[number]
            why = "an earlier record of the same key is not settled yet, and they are settled in order: ask again then"
            settling.answer(number, Answer(error=OutOfOrder(why)))
            self._let_go()

    def _let_go(self) -> None:
        """Of the first requests, as far as they are judged."""
        while self._settling and not next(iter(self._settling)).todo:
            self._settling.popitem(last=False)
