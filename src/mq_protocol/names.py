"""What topics and groups may be called, which settings a topic has, and the nearest right word for a wrong one.

A setting is written once: as a field of a dataclass, with its values, its default and its reason. The broker checks
with it, the command line lists it.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from mq_protocol import limits
from mq_protocol.errors import InvalidRequest, InvalidSetting, InvalidTopicName

INTERNAL_PREFIX = "__"
"""Topics of the brokers' own begin so; users can neither create nor delete nor write them."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
N = TypeVar("N")
R = TypeVar("R", int, float)
_Choice = TypeVar("_Choice", bound=Enum)

FOR_EVER = "forever"
"""What retention is by default: nothing is dropped that nobody asked to be."""

TRANSACTIONS_TOPIC = "__transactions"
"""Whose partitions' leaders are the transaction coordinators."""

# Controls, format characters, surrogates, separators of lines and paragraphs
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

# Path separators, control characters, surrogates, private use and non-characters: what ZooKeeper refuses in a node's
# name. The comma separates topics wherever a list of them is written (`subscribe`, the command line).
_FORBIDDEN = re.compile("[/,\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


_NEAR: Final = 0.6
"""How alike two words must be, as `difflib` rates them, for one to be taken for the other misspelt."""


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of `words` that `word` was most likely meant to be, ignoring case; None if none is near, or if the search
    would take long: brokers search for strangers, and to rate two long words against each other takes a millisecond.
    """
    candidates = list(islice(words, limits.NEAREST_CANDIDATES_MAX + 1))
    if len(word) > limits.NEAREST_WORD_CHARACTERS_MAX or len(candidates) > limits.NEAREST_CANDIDATES_MAX:
        return None
    matcher: difflib.SequenceMatcher[str] = difflib.SequenceMatcher()
    matcher.set_seq2(word.lower())
    possible: list[tuple[float, str]] = []
    for candidate in candidates:
        if len(candidate) <= limits.NEAREST_WORD_CHARACTERS_MAX:
            matcher.set_seq1(candidate.lower())
            if matcher.real_quick_ratio() >= _NEAR and (most := matcher.quick_ratio()) >= _NEAR:
                possible.append((most, candidate))
    possible.sort(reverse=True)
    best, found = _NEAR, None
    for _, candidate in possible[: limits.NEAREST_RATED_MAX]:
        matcher.set_seq1(candidate.lower())
        if (rated := matcher.ratio()) >= best and (found is None or rated > best):
            best, found = rated, candidate
    return found


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """`": did you mean 'x'?"`, or nothing: to be put behind an error's first words."""
    found = nearest(word, words)
    return f": did you mean {found!r}?" if found else ""


OR_NO_RIGHT: Final = "; or you have no right to it: an administrator looks by `tritonmq acl list`"
"""What else may be the reason that a topic is unknown: brokers do not say that there is one that is hidden."""


def no_such_topic(name: str) -> str:
    """What brokers say of a topic that is not there, and in the same words of one that is hidden from whoever asks."""
    shown = f"`tritonmq topic list` shows those that exist, `topic create` makes one{OR_NO_RIGHT}"
    return f"there is no topic {quoted(name)}: {shown}"


def check_topic_name(name: str, *, internal: bool = False) -> None:
    """Whether there can be a topic of that name. Raises `InvalidTopicName`, saying which character or rule. `internal`:
    names beginning with `__` are meant. A new topic must also pass `check_new_topic_name`."""
    fault = _fault(name)
    if fault:
        raise InvalidTopicName(f"topic name {quoted(name)} {fault}")
    if name.startswith(INTERNAL_PREFIX) and not internal:
        raise InvalidTopicName(
            f"topic name {name!r} begins with {INTERNAL_PREFIX!r}, which is kept for the brokers' own topics"
        )


def check_new_topic_name(name: str, bytes_max: int = limits.NAME_BYTES_MAX) -> None:
    """For a topic that is to be made. Raises `InvalidTopicName`, saying which character or rule."""
    check_topic_name(name)
    fault = _fault_of_new(name, bytes_max) or _fault_of_node(name)
    if fault:
        raise InvalidTopicName(f"topic name {quoted(name)} {fault}")


def check_group_name(name: str) -> None:
    """Whether there can be a group of that name. Raises `InvalidRequest`, saying which character or rule. A new group
    must also pass `check_new_group_name`."""
    fault = _fault(name)
    if fault:
        raise InvalidRequest(f"group name {quoted(name)} {fault}")


def check_new_group_name(name: str) -> None:
    """For a group that has no cursor yet. Raises `InvalidRequest`, saying which character or rule."""
    _check_new("group name", name)


def check_member_id(name: str) -> None:
    """The id of a group's member, which its broker forgets when the member leaves. Raises `InvalidRequest`."""
    _check_new("member id", name)


def check_member_key(key: bytes) -> None:
    """The secret of a group's member. Raises `InvalidRequest`, which does not show it."""
    if not limits.MEMBER_KEY_BYTES <= len(key) <= limits.MEMBER_KEY_BYTES_MAX:
        raise InvalidRequest(
            f"a member key of {len(key)} bytes: give {limits.MEMBER_KEY_BYTES} to {limits.MEMBER_KEY_BYTES_MAX} random "
            "bytes"
        )


def check_label(label: str) -> None:
    """What people call a group, which is shown and never looked up. Raises `InvalidRequest`."""
    if label != usable_label(label):
        raise InvalidRequest(
            f"label {quoted(label)} has more than {limits.LABEL_CHARACTERS_MAX} characters, or some that do not show"
        )


def usable_label(text: str) -> str:
    """As much of any text as can be a label: the beginning, with a blank in place of each character that does not
    show."""
    shown = (character if character.isprintable() else " " for character in text[: limits.LABEL_CHARACTERS_MAX])
    return "".join(shown).strip()


def check_lock_name(name: str) -> None:
    """The name of a lock. Raises `InvalidRequest`, saying which character or rule."""
    _check_new("lock name", name)
    fault = _fault_of_node(name)
    if fault:
        raise InvalidRequest(f"lock name {quoted(name)} {fault}")


def check_user_name(name: str) -> None:
    """The name of a user, or of a group of users. Raises `InvalidRequest`, saying which character or rule."""
    _check_new("user name", name)


def user_named(text: str) -> str:
    """The name of the user who is written as `NAME`, or as rules have it, as `User:NAME`. Raises `InvalidSetting` for
    another kind of principal."""
    kind, colon, name = text.partition(":")
    if colon and kind in ("Group", "Broker"):
        raise InvalidSetting(f"{quoted(text)} is no user: write NAME or User:NAME")
    return name if colon and kind == "User" else text


def check_column_name(name: str) -> None:
    """For a column that is to be made; nested ones too. Names in back-quotes may hold any mark. Raises
    `InvalidRequest`."""
    fault = _fault_of_new(name, limits.NAME_BYTES_MAX)
    if fault:
        raise InvalidRequest(f"column name {quoted(name)} {fault}")


def check_rack(name: str) -> None:
    """A rack's name; empty if a broker has none. Raises `InvalidSetting`."""
    fault = _fault_of_new(name, limits.NAME_BYTES_MAX) if name else None
    if fault:
        raise InvalidSetting(f"rack {quoted(name)} {fault}")


def check_id(what: str, text: str) -> None:
    """Whether an id that a client chose (of a query, a sink, a run) is short enough to be kept with each batch. It may
    hold any character: it is quoted wherever it is shown. Raises `InvalidRequest`."""
    count = len(text.encode("utf-8", "surrogatepass"))
    if count > limits.ID_BYTES_MAX:
        raise InvalidRequest(f"a {what} of {count} bytes is too long: at most {limits.ID_BYTES_MAX} are allowed")


def quoted(text: object) -> str:
    """What came from outside as a log or an error shows it: in ASCII, in quotes, and at most 200 characters of it."""
    text = text if isinstance(text, str) else str(text)
    shown = ascii(text[: limits.QUOTED_CHARACTERS_MAX])
    cut = len(text) > limits.QUOTED_CHARACTERS_MAX or len(shown) > limits.QUOTED_CHARACTERS_MAX
    return f"{shown[: limits.QUOTED_CHARACTERS_MAX]}..." if cut else shown


def _check_new(what: str, name: str) -> None:
    fault = _fault(name) or _fault_of_new(name, limits.NAME_BYTES_MAX)
    if fault:
        raise InvalidRequest(f"{what} {quoted(name)} {fault}")


def _fault(name: object) -> str | None:
    if not isinstance(name, str):  # applications give anything
        return f"is no text, it is {type(name).__name__}: give text"
    if not name:
        return "is empty: give it at least one character"
    if name in (".", ".."):
        return "means a directory: choose another"
    if len(name) > limits.NAME_CHARACTERS_MAX:
        return f"has {len(name)} characters: at most {limits.NAME_CHARACTERS_MAX} are allowed"
    found = _FORBIDDEN.search(name)
    if found:
        return (
            f"has the character U+{ord(found[0]):04X} at character {found.start() + 1}: "
            "'/', ',', control characters and private ones cannot be in a name"
        )
    if name != name.strip():
        return "begins or ends with a blank: leave it out"
    return None


def _fault_of_new(name: str, bytes_max: int) -> str | None:
    """What was once taken and is not taken any more: names that look like others, forge lines or change how text
    runs."""
    if not name:
        return "is empty: give it at least one character"
    if len(name) > bytes_max:  # before anything looks at each character
        return f"has {len(name)} characters: at most {bytes_max} bytes are allowed"
    for at, character in enumerate(name, start=1):
        if unicodedata.category(character) in _UNSEEN:
            return f"has the character U+{ord(character):04X} at character {at}, which is not seen: leave it out"
    count = len(name.encode())
    if count > bytes_max:
        return f"has {count} bytes in UTF-8: at most {bytes_max} are allowed"
    if not unicodedata.is_normalized("NFC", name):
        return (
            f"looks like {quoted(unicodedata.normalize('NFC', name))} and is not the same: write that (Unicode's form "
            "NFC)"
        )
    return None


def _fault_of_node(name: str) -> str | None:
    """What ZooKeeper takes in no node's name."""
    for at, character in enumerate(name, start=1):
        if ord(character) > _NODE_CHARACTER_MAX:
            return (
                f"has the character U+{ord(character):04X} at character {at}: ZooKeeper keeps no name with one above "
                "U+FFFF"
            )
    return None


_NODE_CHARACTER_MAX: Final = 0xFFFF
"""Java has characters of 16 bits, and ZooKeeper refuses those of which it takes two."""


# ---------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True)
class Values(Generic[T_co]):
    """What a setting may be. `allowed`: in words. `read`: what a text means; it raises `_Unread` for one that is not
    allowed."""

    allowed: str
    read: Callable[[str], T_co]


@dataclass(frozen=True, slots=True)
class Setting:
    """One of a table. `default` is for people; `reason` says what the setting is for and why it is bounded. `live`: one
    of a topic that can be changed while the topic is in use; replicas that differ in another would part, or take it
    only when they restart. `level`: of features, which the cluster needs."""

    name: str
    values: Values[Any]
    default: str
    reason: str
    live: bool = False
    level: int = 1

    @property
    def allowed(self) -> str:
        return self.values.allowed

    def value(self, text: str) -> Any:
        """Raises `InvalidSetting`, which names the setting, what it was given and what is allowed."""
        try:
            return self.values.read(text)
        except _Unread as wrong:
            raise InvalidSetting(
                f"{self.name}={text!r} is not allowed{str(wrong) or ':'} give {self.allowed}; {self.reason}"
            ) from None


class _Unread(Exception):
    """A text is not allowed. With what is to be said beside, up to its colon or question mark."""


def setting(values: Values[T], default: str, reason: str, *, shown: str = "", live: bool = False, level: int = 1) -> T:
    """A field of a dataclass of settings. `shown`: its default in words, where that depends on something."""
    row = Setting("", values, shown or default, reason, live, level)
    return field(default=values.read(default), metadata={_SETTING: row})


_SETTING: Final = "setting"


def settings_of(kind: Any) -> dict[str, Setting]:
    """The table, in order of the fields."""
    return {each.name: replace(each.metadata[_SETTING], name=each.name) for each in fields(kind)}


def read_settings(
    kind: Callable[..., T], table: Mapping[str, Setting], given: Mapping[str, str], what: str, /, **usual: Any
) -> T:
    """Defaults filled in. `what`: whose settings they are. `usual`: defaults that depend on something. Raises
    `InvalidSetting`; for an unknown name it says the nearest right one."""
    for name in given:
        if name not in table:
            raise InvalidSetting(
                f"unknown {what} setting {name!r}{did_you_mean(name, table)} (settings are: {', '.join(table)})"
            )
    return kind(**{**usual, **{name: table[name].value(text) for name, text in given.items()}})


# what a setting may be

_MANY: Final = 1 << 62
"""What fits a number on the wire, where nothing else is a bound."""


def whole(low: int, high: int) -> Values[int]:
    return _between(low, high, _whole, str)


def sizes(low: int, high: int = _MANY) -> Values[int]:
    """In bytes."""
    return _between(low, high, parse_size, bytes_written)


def times(low: int, high: int = _MANY) -> Values[int]:
    """In milliseconds."""

    def meant(value: int) -> str:
        return f" ({value} means {value} ms, write {value}s for seconds):" if value < low <= 1_000 * value else ""

    return _between(low, high, parse_duration, _ms_written, meant)


def factors(low: float, high: float) -> Values[float]:
    return _between(low, high, _factor, "{:g}".format)


def one_of(kind: type[_Choice]) -> Values[_Choice]:
    words = [choice.value for choice in kind]

    def read(text: str) -> _Choice:
        if text not in words:
            raise _Unread(did_you_mean(text, words))
        return kind(text)

    return Values(f"{', '.join(words[:-1])} or {words[-1]}", read)


def or_for_ever(values: Values[T], never: N) -> Values[T | N]:
    """Also `forever`, and -1 as in Kafka."""

    def read(text: str) -> T | N:
        return never if text.strip().lower() in (FOR_EVER, "-1") else values.read(text)

    return Values(f"{values.allowed}, or {FOR_EVER}", read)


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise _Unread
    return word == "true"


FLAG: Final = Values("true or false", _flag)


def _between(
    low: R, high: R, parse: Callable[[str], R], shown: Callable[[R], str], meant: Callable[[R], str] = lambda _value: ""
) -> Values[R]:
    """`meant`: what is to be said of a value beyond the bounds."""

    def read(text: str) -> R:
        try:
            value = parse(text)
        except ValueError:
            raise _Unread from None
        if not low <= value <= high:
            raise _Unread(meant(value))
        return value

    return Values(f"{shown(low)} or more" if high == _MANY else f"{shown(low)} to {shown(high)}", read)


_DURATION = re.compile(r"(?P<number>[0-9][0-9_]*)\s*(?P<unit>|ms|s|m|h|d|w)", re.IGNORECASE)
_DURATION_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE = re.compile(r"(?P<number>[0-9][0-9_]*)\s*(?P<unit>|b|[kmg]|[kmg]i?b)", re.IGNORECASE)
_TIMES: Final = {unit: _DURATION_MS[unit] for unit in "dhms"}
_SIZES: Final = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}


def bytes_written(number: int) -> str:
    """As `parse_size` reads it."""
    return _in_units(_SIZES, number)


def _ms_written(number: int) -> str:
    return _in_units(_TIMES, number)


def _in_units(units: Mapping[str, int], number: int) -> str:
    """In the largest of them, of which it is a whole number."""
    fit = (f"{number // one}{unit}" for unit, one in units.items() if number and number % one == 0)
    return next(fit, str(number))


def parse_size(text: str) -> int:
    """Bytes of `4096`, `100B`, `64KiB`, `4m` or `1GiB`: powers of two always. Raises `ValueError` for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError(text)
    return int(found["number"]) << {"": 0, "b": 0, "k": 10, "m": 20, "g": 30}[found["unit"][:1].lower()]


def parse_duration(text: str) -> int:
    """Milliseconds of `90`, `90s`, `12h` or `7d`. Raises `ValueError` for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError(text)
    return int(found["number"]) * _DURATION_MS[found["unit"].lower()]


def _whole(text: str) -> int:
    """Python would take `1_0` and digits of other scripts, too."""
    if re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise ValueError(text)
    return int(text)


def _factor(text: str) -> float:
    if re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text) is None:
        raise ValueError(text)
    return float(text)


# ---------------------------------------------------------------- settings of a topic


class Durability(Enum):
    """What an acknowledgement means on every in-sync broker."""

    FSYNC = "fsync"
    OS = "os"
    MEMORY = "memory"


class Acks(Enum):
    """When a batch counts as sent, the strongest first, by the names that producers give."""

    ALL = "all"
    LEADER = "leader"
    NONE = "none"


class OnTotalLoss(Enum):
    """What becomes of a partition when every log that its in-sync set names is gone."""

    RECOVER = "recover"
    STOP = "stop"


class RetentionPolicy(Enum):
    """What may be dropped beside what is too old or too much: nothing, or what all groups are done with."""

    LIMITS = "limits"
    CONSUMED = "consumed"


KEY_NAME = re.compile(r"[0-9A-Za-z_.-]{1,64}")
"""Of a key that seals what lies on disk."""


def _key_name(text: str) -> str:
    if text and not KEY_NAME.fullmatch(text):
        raise _Unread
    return text


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's settings, every one with its value. Sizes in bytes, times in milliseconds; None for ever."""

    durability: Durability = setting(
        one_of(Durability),
        "fsync",
        "what an acknowledged batch survives: power loss of every broker, kill -9 of every broker, or loss of all but "
        "one",
    )
    min_insync_replicas: int = setting(
        Values("1 to the number of replicas", _whole),
        "1",
        "how many in-sync brokers must hold a batch before it is acknowledged; 1 survives the loss of all but one",
        shown="a majority of the replicas",
        live=True,
    )
    acks_min: Acks = setting(
        one_of(Acks),
        "none",
        "the least that a producer may ask for before its batches count as sent; weaker batches are refused, so that "
        "no program gives away what the topic promises",
        live=True,
    )
    batch_bytes_max: int = setting(
        sizes(limits.BATCH_BYTES_FLOOR, limits.BATCH_BYTES_CEILING),
        str(limits.BATCH_BYTES_MAX),
        "the largest stored batch; a batch is held in memory whole",
        live=True,
    )
    batch_decoded_bytes_max: int = setting(
        Values(f"batch_bytes_max to {bytes_written(limits.BATCH_DECODED_BYTES_CEILING)}", parse_size),
        str(limits.BATCH_DECODED_BYTES_MAX),
        "the largest batch once it is decompressed: what checking, filtering and reading it takes in memory",
        live=True,
    )
    record_bytes_max: int = setting(
        Values(f"1 to batch_bytes_max less {limits.BATCH_OVERHEAD_BYTES}", parse_size),
        str(limits.RECORD_BYTES_MAX),
        "the largest record; every record must fit a batch of its own",
        live=True,
    )
    segment_bytes_max: int = setting(
        sizes(limits.SEGMENT_BYTES_FLOOR, limits.SEGMENT_BYTES_CEILING),
        str(limits.SEGMENT_BYTES_MAX),
        "a journal file's size; what is deleted at once",
    )
    dedup_uuids_max: int = setting(
        whole(limits.DEDUP_UUIDS_FLOOR, limits.DEDUP_UUIDS_CEILING),
        str(limits.DEDUP_UUIDS_MAX),
        "how many batches back a retry is recognised, a partition; each takes 48 bytes of memory on every replica",
    )
    dedup_ms: int | None = setting(
        or_for_ever(times(limits.DEDUP_MS_FLOOR), None),
        FOR_EVER,
        "how long a retry is recognised, within dedup_uuids_max; below a minute a producer may still be retrying",
    )
    retention_ms: int | None = setting(
        or_for_ever(times(limits.RETENTION_MS_FLOOR), None),
        FOR_EVER,
        "how old a batch may get before it is dropped",
        live=True,
    )
    retention_bytes: int | None = setting(
        or_for_ever(sizes(0), None),
        FOR_EVER,
        "how much a partition may hold before its oldest batches are dropped",
        live=True,
    )
    retention: RetentionPolicy = setting(
        one_of(RetentionPolicy),
        "limits",
        "what is dropped: what retention_ms and retention_bytes allow; with consumed also what every group of the "
        "topic is done with, if it has any",
        live=True,
    )
    retention_over_queues: bool = setting(
        FLAG,
        "false",
        "whether retention drops records that a queue group has not settled: they are settled then, and nobody worked "
        "on them",
        live=True,
    )
    scheduled_max: int = setting(
        whole(0, limits.SCHEDULED_CEILING),
        str(limits.SCHEDULED_MAX),
        "how many scheduled batches a partition keeps until they are due; each takes some 400 bytes of memory on every "
        "replica",
        live=True,
    )
    encryption_key: str = setting(
        Values("a key's name: 1 to 64 letters, digits, `.`, `_` and `-`", _key_name),
        "",
        "which key of the brokers' --encrypt seals what is on disk; to destroy that key is to destroy the records",
        shown="that of --encrypt",
    )
    member_idle_ms: int | None = setting(
        or_for_ever(times(limits.MEMBER_IDLE_MS_FLOOR), None),
        FOR_EVER,
        "how long a group's member may keep a partition and neither take nor settle records while there are some; then "
        "the next member has it, and what was not settled is given again",
        live=True,
    )
    on_total_loss: OnTotalLoss = setting(
        Values("recover (durability=memory only) or stop", one_of(OnTotalLoss).read),
        "stop",
        "whether a partition that has lost every in-sync log continues by itself with what is left, or waits for an "
        "operator",
        shown="recover if durability is memory, else stop",
        live=True,
    )


SETTINGS: Mapping[str, Setting] = settings_of(TopicSettings)


def parse_settings(given: Mapping[str, str], replicas: int) -> TopicSettings:
    """The settings of a topic with that many replicas, defaults filled in.

    Sizes are bytes, or `64KiB`, `4MiB`, `1GiB` (also `4m`: powers of two always). Raises `InvalidSetting` naming the
    setting, what it was given and what is allowed; for an unknown name, the nearest right one.
    """
    batch_bytes_max: int = SETTINGS["batch_bytes_max"].value(given.get("batch_bytes_max", str(limits.BATCH_BYTES_MAX)))
    most = batch_bytes_max - limits.BATCH_OVERHEAD_BYTES
    narrower = {
        "min_insync_replicas": whole(1, replicas),
        "batch_decoded_bytes_max": sizes(batch_bytes_max, limits.BATCH_DECODED_BYTES_CEILING),
        "record_bytes_max": sizes(1, most),
    }
    table = {**SETTINGS, **{name: replace(SETTINGS[name], values=values) for name, values in narrower.items()}}
    usual = {"min_insync_replicas": replicas // 2 + 1, "record_bytes_max": min(limits.RECORD_BYTES_MAX, most)}
    settings = read_settings(TopicSettings, table, given, "topic", **usual)
    if settings.durability is Durability.MEMORY:
        recovers = "on_total_loss" not in given
        return replace(settings, on_total_loss=OnTotalLoss.RECOVER) if recovers else settings
    if settings.on_total_loss is OnTotalLoss.RECOVER:
        raise InvalidSetting(
            f"on_total_loss=recover would drop by itself what durability={settings.durability.value} promises to keep: "
            "leave it at stop, and see `tritonmq partition recover`"
        )
    return settings
