"""What a request may cost: how large one message of each method may be, and how much it may name. Checked before
anything else.

Bytes on the wire say little about what they become: two bytes can be an element of a list, and an element takes a
hundred bytes of memory and more of time. So elements are counted on the wire, before protobuf makes objects of them. A
request is refused whole, and the error says the bound, which is in the method's row (`mq_protocol/methods.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Hashable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from mq_broker.rpc.callers import account
from mq_broker.rpc.turns import Spacing, Turns
from mq_protocol import limits
from mq_protocol.errors import InvalidRequest, RequestTooLarge
from mq_protocol.methods import BROKER, PEER, Bound, Elements

M = TypeVar("M", bound=Message)

READ_AT_ONCE_BYTES_MAX: Final = 16 << 10
"""Larger requests are counted and compared a piece at a time, and others have their turn between two. Not in a thread:
it would take the interpreter from the loop for 5 ms each time that the loop waits for something."""

LARGE_BYTES_PER_S: Final = 32 << 20
LARGE_WAITS_S_MAX: Final = 1.0
"""Such a request waits first, so many bytes of its account a second, and not longer than this, since an attempt of a
client may last three seconds: to receive one has cost others time, and the next one comes after it. None is refused
instead: whoever is refused at once asks again at once. What brokers alone ask waits for itself."""

_of_clients: Final = Spacing(LARGE_WAITS_S_MAX)

COUNTED_IN_A_TURN: Final = 300
COMPARED_IN_A_TURN: Final = 300
"""Elements, each in about a microsecond: so long may any list be worked on (`TURN_S` of broker/runtime/streams.py)."""

_ELEMENT_BYTES_MIN: Final = 2
"""An element of a list takes at least its tag and its length."""

_VARINT_BYTES_MAX: Final = 10
_TAG_BITS: Final = 3
_KIND: Final = (1 << _TAG_BITS) - 1
_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}

_NUMBERS: Final = re.compile(
    b"(?:[" + bytes(range(_VARINT, 0x80, 1 << _TAG_BITS)) + rb"][\x80-\xff]{0,9}[\x00-\x7f]){1,32}"
)
"""Some fields that are numbers, one after the other. They are passed over together: each by itself takes as long as an
element that counts, and a request may hold more of them than of those."""


BOUNDS: Final[dict[str, Bound]] = {
    name: method.bound for service in (BROKER, PEER) for name, method in service.methods.items()
}


class Bounded(Generic[M]):
    """Reads a method's requests, which are of `kind`, and lets none through that is above the method's
    bound.

    Raises `LookupError` for a method that has no bound: it is not served.
    """

    def __init__(self, method: str, kind: type[M]) -> None:
        if method not in BOUNDS:
            raise LookupError(
                f"method {method} has no row in mq_protocol/methods.py, which says what one request of it may cost"
            )
        self.method = method
        self._of_brokers = method not in BROKER.methods  # what both ask counts as a client's
        self._bound = BOUNDS[method]
        self._kind = kind
        self._plan = _plan(kind, self._bound.lists, "")
        self._fewest = min((each.most for each in self._bound.lists.values()), default=limits.MESSAGE_BYTES_MAX)

    async def read(self, data: bytes) -> M:
        """The message. Raises `RequestTooLarge` for one above the bound, `InvalidRequest` for bytes that are none, and
        for an element that is named twice."""
        self._check_size(data)
        if len(data) > READ_AT_ONCE_BYTES_MAX:
            waits_s = len(data) / LARGE_BYTES_PER_S
            await asyncio.sleep(waits_s if self._of_brokers else _of_clients.rest_s(waits_s, account()))
        if not self._bound.lists:
            return parse(data, self._kind)
        steps, turns = self._steps(data), Turns(alone=self._of_brokers)
        try:
            while True:
                next(steps)
                if len(data) > READ_AT_ONCE_BYTES_MAX:
                    await turns.others()
        except StopIteration as ended:
            message: M = ended.value
            return message

    def _check_size(self, data: bytes) -> None:
        if len(data) > self._bound.bytes_max:
            raise RequestTooLarge(
                f"a {self.method} request of {len(data)} bytes is above {self._bound.bytes_max}: {self._bound.advice}"
            )

    def _steps(self, data: bytes) -> Generator[None, None, M]:
        if len(data) > _ELEMENT_BYTES_MIN * self._fewest:
            yield from _Count(self.method, data).over(self._plan, 0, len(data))
            yield
        message = parse(data, self._kind)
        for path, elements in self._bound.lists.items():
            if "." not in path:
                self._refuse_more(path, elements.most, len(attrgetter(path)(message)))
            if elements.once is not None:
                yield from self._check_once(path, elements.once, attrgetter(path)(message))
        return message

    def _refuse_more(self, path: str, most: int, found: int) -> None:
        if found > most:
            raise _too_many(self.method, path, most, str(found))

    def _check_once(self, path: str, once: tuple[str, ...], elements: Any) -> Iterator[None]:
        key = attrgetter(*once) if once else _itself
        seen: set[Hashable] = set()
        for number, element in enumerate(elements):
            if number % COMPARED_IN_A_TURN == 0:
                yield
            named = key(element)
            if named in seen:
                raise InvalidRequest(f"a {self.method} request names {named!r:.200} twice in {path}: name each once")
            seen.add(named)


def parse(data: bytes, kind: type[M]) -> M:
    """The message. Raises `InvalidRequest` for bytes that are none."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"malformed {kind.__name__}: {error}; speak protobuf as in mq.proto") from error
    return message


# ------------------------------------------------------------------ private


def _itself(element: Hashable) -> Hashable:
    return element


def _too_many(method: str, path: str, most: int, found: str) -> RequestTooLarge:
    return RequestTooLarge(
        f"a {method} request has {found} {path.replace('.', ' ')}: at most {most} are taken at once; ask several times"
    )


class _Step(NamedTuple):
    """What a field's number means to the count: a list with its path and bound, the fields within it, or both."""

    path: str
    most: int | None
    within: _Plan


_Plan: TypeAlias = dict[int, _Step]


def _plan(kind: Any, lists: Mapping[str, Elements], prefix: str) -> _Plan:
    """Of a message class, or of the type of a field within one."""
    plan: _Plan = {}
    for described in kind.DESCRIPTOR.fields if prefix == "" else kind.fields:
        path = prefix + described.name
        bounded = lists.get(path)
        below = any(known.startswith(path + ".") for known in lists)
        if described.type in _COUNTED and (bounded is not None or below):
            within = _plan(described.message_type, lists, path + ".") if below else {}
            plan[described.number] = _Step(path, None if bounded is None else bounded.most, within)
    return plan


_COUNTED: Final = frozenset({FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES})
"""Numbers are left out: there are no more of them than bytes, and as objects they take a few times as much."""


class _Count:
    """Owns the count of one request's elements, list by list, in one pass over its bytes; ends at the first above its
    bound."""

    def __init__(self, method: str, data: bytes) -> None:
        self._method = method
        self._data = data
        self._found: dict[str, int] = {}
        self._left = COUNTED_IN_A_TURN

    def over(self, plan: _Plan, at: int, end: int) -> Iterator[None]:
        """The fields of the message in `data[at:end]`, so many in each step. A million elements take a third of a
        second."""
        data, found = self._data, self._found
        while at < end:
            self._left -= 1
            if not self._left:
                self._left = COUNTED_IN_A_TURN
                yield
            tag = data[at]
            if tag < 0x80 and tag & _KIND == _LENGTH_DELIMITED and at + 1 < end and data[at + 1] < 0x80:
                length, at = data[at + 1], at + 2  # nearly all are like this
            elif numbers := _NUMBERS.match(data, at, end):
                at = numbers.end()
                continue
            else:
                tag, at = self._varint(at, end)
                if tag & _KIND != _LENGTH_DELIMITED:
                    at = self._past(tag & _KIND, at, end)
                    continue
                length, at = self._varint(at, end)
            if at + length > end:
                raise self._malformed()
            step = plan.get(tag >> _TAG_BITS)
            if step is not None:
                count = found[step.path] = found.get(step.path, 0) + 1
                if step.most is not None and count > step.most:
                    raise _too_many(self._method, step.path, step.most, f"more than {step.most}")
                if step.within:
                    yield from self.over(step.within, at, at + length)
            at += length

    def _past(self, kind: int, at: int, end: int) -> int:
        if kind == _VARINT:
            return self._varint(at, end)[1]
        if kind not in _FIXED_BYTES or at + _FIXED_BYTES[kind] > end:
            raise self._malformed()
        return at + _FIXED_BYTES[kind]

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        data = self._data
        value = shift = 0
        for place in range(at, min(end, at + _VARINT_BYTES_MAX)):
            byte = data[place]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, place + 1
            shift += 7
        raise self._malformed()

    def _malformed(self) -> InvalidRequest:
        return InvalidRequest(
            f"malformed {self._method} request: its fields do not end where it does; speak protobuf as in mq.proto"
        )
