"""What topics and groups may be called, which settings a topic has, and the nearest right word for a wrong one.

One table holds the settings: parser, default, range and reason. The broker checks with it, the command line lists it.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, TypeVar

from mq_protocol import limits
from mq_protocol.errors import InvalidRequest, InvalidSetting, InvalidTopicName

INTERNAL_PREFIX = "__"
"""Topics of the brokers' own begin so; users can neither create nor delete nor write them."""

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


# ---------------------------------------------------------------- settings of a topic


class Durability(Enum):
    """What an acknowledgement means on every in-sync broker."""

    FSYNC = "fsync"
    OS = "os"
    MEMORY = "memory"


class OnTotalLoss(Enum):
    """What becomes of a partition when every log that its in-sync set names is gone."""

    RECOVER = "recover"
    STOP = "stop"


class RetentionPolicy(Enum):
    """What may be dropped beside what is too old or too much: nothing, or what all groups are done with."""

    LIMITS = "limits"
    CONSUMED = "consumed"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's settings, every one with its value. Sizes in bytes. Retention and `dedup_ms` None: nothing is
    dropped. `member_idle_ms` None: nobody gives way."""

    durability: Durability
    min_insync_replicas: int
    batch_bytes_max: int
    batch_decoded_bytes_max: int
    record_bytes_max: int
    segment_bytes_max: int
    dedup_uuids_max: int
    dedup_ms: int | None
    on_total_loss: OnTotalLoss
    retention_ms: int | None
    retention_bytes: int | None
    retention: RetentionPolicy
    retention_over_queues: bool
    scheduled_max: int
    encryption_key: str = ""
    member_idle_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table. `default` is for people; `reason` says what the setting is for and why it is bounded.
    `live`: it can be changed while the topic is in use; replicas that differ in another would part, or take it only
    when they restart. `level`: of features, which the cluster needs."""

    name: str
    default: str
    allowed: str
    reason: str
    live: bool = False
    level: int = 1


SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "durability",
            Durability.FSYNC.value,
            "fsync, os or memory",
            "what an acknowledged batch survives: power loss of every broker, kill -9 of every broker, or loss of all "
            "but one",
        ),
        Setting(
            "min_insync_replicas",
            "a majority of the replicas",
            "1 to the number of replicas",
            "how many in-sync brokers must hold a batch before it is acknowledged; 1 survives the loss of all but one",
            live=True,
        ),
        Setting(
            "batch_bytes_max",
            str(limits.BATCH_BYTES_MAX),
            f"{limits.BATCH_BYTES_FLOOR} to {limits.BATCH_BYTES_CEILING}",
            "the largest stored batch; a batch is held in memory whole",
            live=True,
        ),
        Setting(
            "batch_decoded_bytes_max",
            str(limits.BATCH_DECODED_BYTES_MAX),
            f"batch_bytes_max to {limits.BATCH_DECODED_BYTES_CEILING}",
            "the largest batch once it is decompressed: what checking, filtering and reading it takes in memory",
            live=True,
        ),
        Setting(
            "record_bytes_max",
            str(limits.RECORD_BYTES_MAX),
            f"1 to batch_bytes_max less {limits.BATCH_OVERHEAD_BYTES}",
            "the largest record; every record must fit a batch of its own",
            live=True,
        ),
        Setting(
            "segment_bytes_max",
            str(limits.SEGMENT_BYTES_MAX),
            f"{limits.SEGMENT_BYTES_FLOOR} to {limits.SEGMENT_BYTES_CEILING}",
            "a journal file's size; what is deleted at once",
        ),
        Setting(
            "dedup_uuids_max",
            str(limits.DEDUP_UUIDS_MAX),
            f"{limits.DEDUP_UUIDS_FLOOR} to {limits.DEDUP_UUIDS_CEILING}",
            "how many batches back a retry is recognised, a partition; each takes 48 bytes of memory on every replica",
        ),
        Setting(
            "dedup_ms",
            FOR_EVER,
            f"{limits.DEDUP_MS_FLOOR} or more, with a unit if you like (10m, 12h, 7d), or {FOR_EVER}",
            "how long a retry is recognised, within dedup_uuids_max; below a minute a producer may still be retrying",
        ),
        Setting(
            "retention_ms",
            FOR_EVER,
            f"{limits.RETENTION_MS_FLOOR} or more, with a unit if you like (90s, 12h, 7d), or {FOR_EVER}",
            "how old a batch may get before it is dropped",
            live=True,
        ),
        Setting(
            "retention_bytes",
            FOR_EVER,
            f"0 or more, or {FOR_EVER}",
            "how much a partition may hold before its oldest batches are dropped",
            live=True,
        ),
        Setting(
            "retention",
            RetentionPolicy.LIMITS.value,
            "limits or consumed",
            "what is dropped: what retention_ms and retention_bytes allow; with consumed also what every group of the "
            "topic is done with, if it has any",
            live=True,
        ),
        Setting(
            "retention_over_queues",
            "false",
            "true or false",
            "whether retention drops records that a queue group has not settled: they are settled then, and nobody "
            "worked on them",
            live=True,
        ),
        Setting(
            "scheduled_max",
            str(limits.SCHEDULED_MAX),
            f"0 to {limits.SCHEDULED_CEILING}",
            "how many scheduled batches a partition keeps until they are due; each takes some 400 bytes of memory on "
            "every replica",
            live=True,
        ),
        Setting(
            "encryption_key",
            "that of --encrypt",
            "a key's name: 1 to 64 letters, digits, `.`, `_` and `-`",
            "which key of the brokers' --encrypt seals what is on disk; to destroy that key is to destroy the records",
        ),
        Setting(
            "member_idle_ms",
            FOR_EVER,
            f"{limits.MEMBER_IDLE_MS_FLOOR} or more, with a unit if you like (90s, 10m), or {FOR_EVER}",
            "how long a group's member may keep a partition and neither take nor settle records while there are some; "
            "then the next member has it, and what was not settled is given again",
            live=True,
        ),
        Setting(
            "on_total_loss",
            "recover if durability is memory, else stop",
            "recover (durability=memory only) or stop",
            "whether a partition that has lost every in-sync log continues by itself with what is left, or waits for "
            "an operator",
            live=True,
        ),
    )
}

KEY_NAME = re.compile(r"[0-9A-Za-z_.-]{1,64}")
"""Of a key that seals what lies on disk."""

_DURATION = re.compile(r"(?P<number>[0-9][0-9_]*)\s*(?P<unit>|ms|s|m|h|d|w)", re.IGNORECASE)
_DURATION_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE = re.compile(r"(?P<number>[0-9][0-9_]*)\s*(?P<unit>|b|[kmg]|[kmg]i?b)", re.IGNORECASE)


def parse_settings(given: Mapping[str, str], replicas: int) -> TopicSettings:
    """The settings of a topic with that many replicas, defaults filled in.

    Sizes are bytes, or `64KiB`, `4MiB`, `1GiB` (also `4m`: powers of two always). Raises `InvalidSetting` naming the
    setting, what it was given and what is allowed; for an unknown name, the nearest right one.
    """
    for name in given:
        if name not in SETTINGS:
            known = ", ".join(SETTINGS)
            raise InvalidSetting(
                f"unknown topic setting {name!r}{did_you_mean(name, SETTINGS)} (settings are: {known})"
            )

    def size(name: str, default: int, low: int, high: int) -> int:
        return _integer(given, name, default, low, high, parse_size)

    batch_bytes_max = size(
        "batch_bytes_max", limits.BATCH_BYTES_MAX, limits.BATCH_BYTES_FLOOR, limits.BATCH_BYTES_CEILING
    )
    record_ceiling = batch_bytes_max - limits.BATCH_OVERHEAD_BYTES
    durability = _one_of(Durability, "durability", given.get("durability", Durability.FSYNC.value))
    return TopicSettings(
        durability=durability,
        min_insync_replicas=_integer(given, "min_insync_replicas", replicas // 2 + 1, 1, replicas, int),
        batch_bytes_max=batch_bytes_max,
        batch_decoded_bytes_max=size(
            "batch_decoded_bytes_max",
            limits.BATCH_DECODED_BYTES_MAX,
            batch_bytes_max,
            limits.BATCH_DECODED_BYTES_CEILING,
        ),
        record_bytes_max=size("record_bytes_max", min(limits.RECORD_BYTES_MAX, record_ceiling), 1, record_ceiling),
        segment_bytes_max=size(
            "segment_bytes_max", limits.SEGMENT_BYTES_MAX, limits.SEGMENT_BYTES_FLOOR, limits.SEGMENT_BYTES_CEILING
        ),
        dedup_uuids_max=_integer(
            given, "dedup_uuids_max", limits.DEDUP_UUIDS_MAX, limits.DEDUP_UUIDS_FLOOR, limits.DEDUP_UUIDS_CEILING, int
        ),
        dedup_ms=_unless_for_ever(given, "dedup_ms", limits.DEDUP_MS_FLOOR, parse_duration),
        retention_ms=_unless_for_ever(given, "retention_ms", limits.RETENTION_MS_FLOOR, parse_duration),
        retention_bytes=_unless_for_ever(given, "retention_bytes", 0, parse_size),
        retention=_one_of(RetentionPolicy, "retention", given.get("retention", RetentionPolicy.LIMITS.value)),
        retention_over_queues=parse_flag(given, SETTINGS["retention_over_queues"]),
        scheduled_max=_integer(given, "scheduled_max", limits.SCHEDULED_MAX, 0, limits.SCHEDULED_CEILING, int),
        encryption_key=_key_name(given.get("encryption_key", "")),
        member_idle_ms=_unless_for_ever(given, "member_idle_ms", limits.MEMBER_IDLE_MS_FLOOR, parse_duration),
        on_total_loss=_on_total_loss(given.get("on_total_loss"), durability),
    )


def _key_name(text: str) -> str:
    if text and not KEY_NAME.fullmatch(text):
        raise InvalidSetting(
            f"encryption_key={text!r} is not allowed: give {SETTINGS['encryption_key'].allowed}; "
            f"{SETTINGS['encryption_key'].reason}"
        )
    return text


def _one_of(kind: type[_Choice], name: str, text: str) -> _Choice:
    words = [choice.value for choice in kind]
    if text not in words:
        raise InvalidSetting(
            f"{name}={text!r} is not known{did_you_mean(text, words)} (it is one of {', '.join(words)})"
        )
    return kind(text)


def parse_flag(given: Mapping[str, str], setting: Setting) -> bool:
    """False unless it is given. Raises `InvalidSetting` for anything but `true` and `false`."""
    text = given.get(setting.name, "false").strip().lower()
    if text not in ("true", "false"):
        raise InvalidSetting(f"{setting.name}={text!r} is not allowed: give {setting.allowed}; {setting.reason}")
    return text == "true"


def _on_total_loss(text: str | None, durability: Durability) -> OnTotalLoss:
    if text is None:
        return OnTotalLoss.RECOVER if durability is Durability.MEMORY else OnTotalLoss.STOP
    chosen = _one_of(OnTotalLoss, "on_total_loss", text)
    if chosen is OnTotalLoss.RECOVER and durability is not Durability.MEMORY:
        raise InvalidSetting(
            f"on_total_loss=recover would drop by itself what durability={durability.value} promises to keep: "
            "leave it at stop, and see `tritonmq partition recover`"
        )
    return chosen


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


_WORDS: Mapping[Callable[[str], int], str] = {
    parse_size: "no size: give bytes, or a number with a unit, such as 64KiB, 4MiB or 1GiB",
    parse_duration: "no length of time: give milliseconds, or a number with a unit, such as 90s, 12h or 7d",
}


def _unless_for_ever(given: Mapping[str, str], name: str, low: int, parse: Callable[[str], int]) -> int | None:
    """The number, or None where nothing is ever dropped: `forever`, and -1 as in Kafka."""
    if given.get(name, FOR_EVER).strip().lower() in (FOR_EVER, "-1"):
        return None
    return _integer(given, name, 0, low, (1 << 62), parse)


def _integer(
    given: Mapping[str, str], name: str, default: int, low: int, high: int, parse: Callable[[str], int]
) -> int:
    if name not in given:
        return default
    try:
        value = parse(given[name])
    except ValueError:
        words = _WORDS.get(parse, f"not a number: give {low} to {high}")
        for_ever = f", or {FOR_EVER}" if SETTINGS[name].default == FOR_EVER else ""
        raise InvalidSetting(f"{name}={given[name]!r} is {words}{for_ever}; {SETTINGS[name].reason}") from None
    if not low <= value <= high:
        raise InvalidSetting(f"{name}={value} is out of range: give {low} to {high}; {SETTINGS[name].reason}")
    return value
