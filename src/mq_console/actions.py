"""What a console that was started with --actions can change. Each is one call of `Admin`, and one command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mq_client import Admin, InvalidRequest, InvalidSetting
from mq_client.shown.looks import shell_word
from mq_protocol.names import SETTINGS, did_you_mean
from mq_protocol.shown import counted

Given = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Field:
    """One line of a form."""

    name: str
    label: str
    default: str = ""
    hint: str = ""
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Action:
    """`names`: the field whose value has to be typed again, since this destroys something. `do` returns what was done,
    as a sentence. `command`: does the same."""

    title: str
    about: str
    fields: tuple[Field, ...]
    do: Callable[[Admin, Given], str]
    command: Callable[[Given], str]
    names: str | None = None


def _whole(given: Given, name: str) -> int:
    text = given[name]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidRequest(f"{name} must be a whole number, not {text!r}")
    return int(text)


def _settings(given: Given) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in given["settings"].split():
        name, separator, value = word.partition("=")
        if not separator or not name or not value:
            raise InvalidRequest(f"{word!r} is not NAME=VALUE")
        if name not in SETTINGS:
            raise InvalidSetting(f"{name!r} is no setting{did_you_mean(name, SETTINGS)}")
        found[name] = value
    return found


def _create(admin: Admin, given: Given) -> str:
    made = admin.create_topic(
        given["topic"],
        partitions=_whole(given, "partitions"),
        replicas=_whole(given, "replicas"),
        schema=given["schema"] or None,
        **_settings(given),
    )
    return f"topic {made.name} is there, with {counted(len(made.partitions), 'partition')}"


def _create_command(given: Given) -> str:
    words = ["tritonmq topic create", shell_word(given["topic"])]
    words += ["--partitions", given["partitions"], "--replicas", given["replicas"]]
    if given["schema"]:
        words += ["--schema", shell_word(given["schema"])]
    for setting in given["settings"].split():
        words += ["--set", shell_word(setting)]
    return " ".join(words)


def _alter_command(given: Given) -> str:
    sets = " ".join(f"--set {shell_word(word)}" for word in given["settings"].split())
    return f"tritonmq topic alter {shell_word(given['topic'])} {sets}"


def _lead(admin: Admin, given: Given) -> str:
    partition, broker = _whole(given, "partition"), _whole(given, "broker")
    admin.transfer_leadership(given["topic"], partition, broker)
    return f"broker {broker} leads partition {partition} of {given['topic']}"


def _move(admin: Admin, given: Given) -> str:
    try:
        brokers = [int(each) for each in given["brokers"].replace(",", " ").split()]
    except ValueError:
        raise InvalidRequest(f"{given['brokers']!r} is no list of brokers: write e.g. 1,2,3") from None
    admin.move_partition(given["topic"], _whole(given, "partition"), brokers)
    return f"partition {given['partition']} of {given['topic']} is on its way to {brokers}"


def _balance(admin: Admin, _given: Given) -> str:
    moves = admin.plan_balance()
    if moves:
        admin.start_moves(moves)
    return f"{counted(len(moves), 'move')} of partitions began" if moves else "replicas and leaders are spread evenly"


def _drain(admin: Admin, given: Given) -> str:
    broker = _whole(given, "broker")
    moves = admin.plan_drain(broker)
    if moves:
        admin.start_moves(moves)
    return f"{counted(len(moves), 'move')} away from broker {broker} began"


def _reset(admin: Admin, given: Given) -> str:
    to: str | int | datetime = given["to"]
    if given["to"].isascii() and given["to"].isdigit():
        to = _whole(given, "to")
    elif to not in ("earliest", "latest"):
        try:
            to = datetime.fromisoformat(given["to"])
        except ValueError:
            raise InvalidRequest(f"{given['to']!r} is neither earliest, latest, an offset nor a time") from None
    admin.reset_group(given["group"], given["topic"], to, unless_read=True)
    return f"group {given['group']} goes on from {given['to']} in {given['topic']}"


def _done(call: Callable[[Admin, Given], object], sentence: str) -> Callable[[Admin, Given], str]:
    """`sentence`: with the fields' values, what was done."""

    def do(admin: Admin, given: Given) -> str:
        call(admin, given)
        return sentence.format(**given)

    return do


def _command(words: str, *names: str) -> Callable[[Given], str]:
    return lambda given: " ".join([words, *(shell_word(given[name]) for name in names)])


_TOPIC: Final = Field("topic", "Topic")
_PARTITION: Final = Field("partition", "Partition")
_GROUP: Final = Field("group", "Group")
_SETTINGS: Final = Field("settings", "Settings", hint="NAME=VALUE, with blanks between", needed=False)

ACTIONS: Final[Mapping[str, Action]] = {
    "create-topic": Action(
        "Create a topic",
        "It can be written to and read from at once.",
        (
            _TOPIC,
            Field("partitions", "Partitions", "1"),
            Field("replicas", "Replicas", "1"),
            Field("schema", "Columns", hint='e.g. "id long, name string"; empty: records', needed=False),
            _SETTINGS,
        ),
        _create,
        _create_command,
    ),
    "alter-topic": Action(
        "Change a topic's settings",
        "Those that can change while it is in use.",
        (_TOPIC, Field("settings", "Settings", hint="NAME=VALUE, with blanks between")),
        _done(
            lambda admin, given: admin.alter_topic(given["topic"], **_settings(given)),
            "topic {topic} has its new settings",
        ),
        _alter_command,
    ),
    "delete-topic": Action(
        "Delete a topic",
        "All its records are lost, and the places of groups in it.",
        (_TOPIC,),
        _done(lambda admin, given: admin.delete_topic(given["topic"]), "topic {topic} is deleted"),
        lambda given: f"tritonmq topic delete {shell_word(given['topic'])} --yes",
        "topic",
    ),
    "purge-topic": Action(
        "Drop a topic's records",
        "All that it holds now is dropped. Offsets go on.",
        (_TOPIC,),
        _done(lambda admin, given: admin.purge(given["topic"]), "what topic {topic} held is dropped"),
        lambda given: f"tritonmq topic purge {shell_word(given['topic'])} --yes",
        "topic",
    ),
    "lead-partition": Action(
        "Hand leadership over",
        "To a broker that is in sync.",
        (_TOPIC, _PARTITION, Field("broker", "To broker")),
        _lead,
        _command("tritonmq partition lead", "topic", "partition", "broker"),
    ),
    "move-partition": Action(
        "Move a partition",
        "Its copies go to these brokers; the first is to lead.",
        (_TOPIC, _PARTITION, Field("brokers", "To brokers", hint="e.g. 1,2,3")),
        _move,
        lambda given: (
            f"{_command('tritonmq partition move', 'topic', 'partition')(given)} --to {shell_word(given['brokers'])}"
        ),
    ),
    "cancel-move": Action(
        "Cancel a move",
        "The partition goes back to where it was.",
        (_TOPIC, _PARTITION),
        _done(
            lambda admin, given: admin.cancel_move(given["topic"], _whole(given, "partition")),
            "partition {partition} of {topic} goes back",
        ),
        lambda given: f"{_command('tritonmq partition move', 'topic', 'partition')(given)} --cancel",
    ),
    "balance": Action(
        "Spread replicas and leaders evenly",
        "Partitions begin to move at once.",
        (),
        _balance,
        lambda _given: "tritonmq cluster balance",
    ),
    "drain-broker": Action(
        "Move everything off a broker",
        "It can be stopped for good once the moves are over.",
        (Field("broker", "Broker"),),
        _drain,
        _command("tritonmq cluster drain", "broker"),
        "broker",
    ),
    "reset-group": Action(
        "Reset a group",
        "It goes on from another place. Refused while it has members.",
        (
            _GROUP,
            _TOPIC,
            Field("to", "To", "latest", "earliest, latest, an offset, or a time such as 2026-11-25T12:00Z"),
        ),
        _reset,
        lambda given: f"{_command('tritonmq group reset', 'group', 'topic')(given)} --to {shell_word(given['to'])}",
        "group",
    ),
    "delete-group": Action(
        "Delete a group",
        "Its place is forgotten. No record is deleted.",
        (_GROUP,),
        _done(lambda admin, given: admin.delete_group(given["group"]), "the place of group {group} is forgotten"),
        _command("tritonmq group delete", "group"),
        "group",
    ),
    "pause-queue": Action(
        "Pause a queue group",
        "It lends nothing more.",
        (_TOPIC, _GROUP),
        _done(
            lambda admin, given: admin.pause_queue(given["topic"], given["group"]),
            "queue group {group} of {topic} lends nothing until it is resumed",
        ),
        _command("tritonmq queue pause", "topic", "group"),
    ),
    "resume-queue": Action(
        "Resume a queue group",
        "It lends records again.",
        (_TOPIC, _GROUP),
        _done(
            lambda admin, given: admin.resume_queue(given["topic"], given["group"]),
            "queue group {group} of {topic} lends records again",
        ),
        _command("tritonmq queue resume", "topic", "group"),
    ),
}
