"""`tritonmq storage`: what lies in the data directory of a broker that does not run. Nothing here changes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mq_cli.commands import argument, command_group, option, several
from mq_cli.output import (
    JSON,
    Column,
    both,
    bytes_text,
    counted,
    counting,
    document,
    documents,
    json_only,
    say,
    time_text,
    write,
    write_json,
    write_rows,
    write_table,
    yes_or_blank,
)
from mq_cli.values import DIRECTORY_THERE

if TYPE_CHECKING:
    from mq_broker.storage.inspecting.checking import Checked, Finding
    from mq_broker.storage.inspecting.contents import Contents, Step
    from mq_broker.storage.inspecting.directory import InspectedDirectory, PartitionFiles


@command_group()
def storage() -> None:
    """Look into the data directory of a broker that does not run. Nothing of it is changed.

    TOPIC is a topic's name or its id. A broker that runs is asked by `tritonmq topic describe` and `tritonmq partition
    describe` instead.
    """


@contextmanager
def _look_into(data: Path, encrypt: str) -> Iterator[InspectedDirectory]:
    from mq_broker.storage.inspecting.directory import look_into

    keys = None
    if encrypt:
        from mq_broker.storage.keyring import Keyring

        keys = Keyring(encrypt)
    with look_into(data, keys) as directory:
        if not directory.locked:
            say(f"{data / 'broker.lock'} is missing: nothing keeps a broker from starting there meanwhile")
        yield directory


Looking = AbstractContextManager["InspectedDirectory"]
DATA: Final = several(
    {
        "data": option(
            "The broker's data directory, or a copy of it.", required=True, type=DIRECTORY_THERE, metavar="DIR"
        ),
        "encrypt": option(
            "The keys that open what is sealed, e.g. file:/etc/tritonmq/keys.json. Not needed to verify checksums.",
            default="",
            metavar="KEYREF",
        ),
    },
    make=_look_into,
)
_FILE_OR_DASH: Final[Any] = click.Path(dir_okay=False, allow_dash=True, path_type=Path)
TOPIC: Final = argument()
PARTITION: Final = argument(type=click.IntRange(0))


@storage.command("list")
def list_partitions(as_json: bool = JSON, data: Looking = DATA) -> None:
    """List the partitions: segments, bytes, entries, snapshots, quarantine. Reads no entries."""
    with data as directory:
        rows = [_partition_row(files) for files in directory.partitions]
        if as_json:
            write_json(
                {
                    "path": str(directory.path),
                    "broker": directory.broker,
                    "cluster_id": directory.cluster_id,
                    "wrong": directory.wrong,
                    "partitions": rows,
                    "strangers": list(directory.strangers),
                }
            )
            return
    broker = "unknown" if directory.broker is None else str(directory.broker)
    say(f"broker {broker}, cluster {directory.cluster_id or 'none yet'}")
    if directory.wrong:
        say(directory.wrong)
    write_rows(rows, _PARTITIONS)


@storage.command()
def show(topic: str = TOPIC, partition: int = PARTITION, as_json: bool = JSON, data: Looking = DATA) -> None:
    """Show one partition: its segments, offsets, what is staged, groups, snapshot, and what was put aside and why.

    All that is read from entries is as if each of them had been committed: the last ones may not have been.
    """
    from mq_broker.storage.inspecting.contents import Replay

    with data as directory:
        files = directory.find(topic, partition)
        with counting(show=True, total=files.size, things="bytes") as progress:
            contents = Replay(files).run(progress)
        document = _shown(files, contents)
    if as_json:
        write_json(document)
        return
    _write_shown(document)


@storage.command()
def entries(
    topic: str = TOPIC,
    partition: int = PARTITION,
    first: int = option(
        "The first entry to show.", "--from", type=click.IntRange(1), default=1, metavar="INDEX", show_default=False
    ),
    count_max: int = option("How many.", "--max", type=click.IntRange(1), default=100, metavar="N"),
    as_json: bool = JSON,
    data: Looking = DATA,
) -> int:
    """List the entries of one partition: what each is, where it lies, and the offsets that it gave.

    Ends at the first bytes that are no good entry, with exit status 1: `verify` says what is behind them.
    """
    from mq_broker.storage.inspecting.contents import Replay

    rows: list[dict[str, Any]] = []
    with data as directory:
        files = directory.find(topic, partition)
        replay = Replay(files)
        for step in replay.steps():
            if step.frame.entry.index >= first:
                rows.append(_entry_row(step))
                if len(rows) == count_max:
                    break
        bad = replay.contents.bad
    if as_json:
        write_json(rows)
    else:
        write_rows(rows, _ENTRIES)
    if bad is not None:
        _say_bad(bad.next_index, bad.position, bad.segment, bad.reason)
    return 0 if bad is None else 1


@storage.command()
def verify(
    topic: str | None = option("Only the partitions of this topic.", metavar="TOPIC"),
    partition: int | None = option("Only this partition of it.", type=click.IntRange(0), metavar="P"),
    as_json: bool = JSON,
    data: Looking = DATA,
) -> int:
    """Check every checksum, and say what is damaged, where, and what would repair it.

    Exit status 1 if something is damaged or could not be checked. What a crash leaves at the end of a log, and nobody
    was promised, is no damage.
    """
    from mq_broker.storage.inspecting.checking import check_owner, check_partition, is_damage

    if partition is not None and topic is None:
        raise click.UsageError("--partition is one of a topic: give --topic too")
    with data as directory:
        chosen = _chosen(directory, topic, partition)
        findings = check_owner(directory) if topic is None else []
        checked: list[Checked] = []
        with counting(show=True, total=sum(files.size for files in chosen), things="bytes") as progress:
            done = 0
            for files in chosen:
                checked.append(check_partition(files, lambda size, before=done: progress(before + size)))  # type: ignore[misc]
                done += files.size
    findings += [finding for each in checked for finding in each.findings]
    if as_json:
        write_json(_verified(directory, checked, findings))
    else:
        _write_verified(checked, findings)
    return 1 if is_damage(findings) else 0


@storage.command()
def export(
    topic: str = TOPIC,
    partition: int = PARTITION,
    first: int | None = option("The first offset. Default: all.", "--from", type=click.IntRange(0), metavar="OFFSET"),
    end: int | None = option("The offset to end before.", "--to", type=click.IntRange(0), metavar="OFFSET"),
    form: str = option(
        "json: a record a line, as `tritonmq consume --json` writes it. arrow: an Arrow IPC stream.",
        "--format",
        type=click.Choice(["json", "arrow"]),
        default="json",
    ),
    schema: str | None = option(
        "The topic's columns, as `tritonmq topic describe` shows them; `records` if it has none. Not needed for "
        "a broker with --standalone.",
        metavar="COLUMNS",
    ),
    output: Path = option(
        "A file that is not there yet. Default: standard output.",
        "-o",
        type=_FILE_OR_DASH,
        default=Path("-"),
        metavar="FILE",
        show_default=False,
    ),
    data: Looking = DATA,
) -> int:
    """Write the records of one partition, in order of offset, as far as its entries are good.

    Exit status 1 if the log cannot be read to the end of the range. What is staged has no offset and is left out. The
    last entries may not have been committed.
    """
    from mq_cli.machines.storage_export import export_records, schema_for

    with data as directory:
        files = directory.find(topic, partition)
        columns = schema_for(directory, files, schema)
        return export_records(files, columns, first, end, form, output)


def _chosen(directory: InspectedDirectory, topic: str | None, partition: int | None) -> list[PartitionFiles]:
    if topic is None:
        return list(directory.partitions)
    if partition is not None:
        return [directory.find(topic, partition)]
    found = [files for files in directory.partitions if topic in (files.place.topic_id, files.topic())]
    if not found:
        raise click.ClickException(f"no partition of a topic {topic!r} is there: see `tritonmq storage list`")
    return found


# ------------------------------------------------------------------ what is told


_PARTITIONS = (
    Column("", "topic", lambda row: row["topic"] or "?"),
    *both("#partition"),
    Column("", "topic id", "topic_id"),
    *both("#segments"),
    Column("bytes", "#bytes", text=bytes_text),
    Column("", "#first", "first_index", str),
    Column("", "#flushed", lambda row: "?" if row["flushed"] is None else row["flushed"]),
    Column("snapshot", "snapshot", text=yes_or_blank),
    Column("", "stopped", lambda row: row["wrong"] or ("cleanly" if row["clean"] else "not cleanly")),
    Column("", "aside", lambda row: bytes_text(row["aside_bytes"]) if row["aside"] else ""),
)
_ENTRIES = (
    Column("", "#entry", "index"),
    *both("#segment"),
    Column("", "#byte", "position"),
    *both("#bytes"),
    Column("", "#epoch", "leader_epoch"),
    Column("", "time", "timestamp_us", time_text),
    *both("kind"),
    Column("", "#records", lambda row: row["records"] or ""),
    Column("", "#offset", lambda row: row["offsets"][0][0] if row["offsets"] else ""),
    *both("uuid"),
)


def _partition_row(files: PartitionFiles) -> dict[str, Any]:
    from mq_protocol.errors import StorageFailed

    wrong, identity, flushed = "", None, None
    try:
        identity, flushed = files.identity(), files.flushed()
    except (StorageFailed, OSError) as error:
        wrong = str(error)
    if identity is None and not wrong:
        wrong = "log.json is missing"
    return {
        "topic": "" if identity is None else identity.topic,
        "partition": files.place.partition,
        "topic_id": files.place.topic_id,
        "directory": str(files.path),
        "segments": len(files.segments),
        "bytes": files.size,
        "first_index": files.segments[0].first_index if files.segments else None,
        "flushed": flushed,
        "snapshot": files.has_snapshot,
        "durability": "" if identity is None else identity.durability,
        "log_id": "" if identity is None else identity.log_id,
        "clean": identity is not None and identity.clean,
        "aside": len(files.asides),
        "aside_bytes": sum(aside.size for aside in files.asides),
        "wrong": wrong,
    }


_STAGED = (
    Column("uuid", value=lambda batch: batch.uuid.hex()),
    Column("query", value=lambda batch: batch.key.query_id),
    Column("sink", value=lambda batch: batch.key.sink),
    *json_only("batch_id", "run_id"),
    Column("records", value="row_count"),
    Column("bytes", value="payload_bytes"),
    Column("entry", value="index"),
    *json_only("timestamp_us", "due_us"),
)


def _shown(files: PartitionFiles, contents: Contents) -> dict[str, Any]:
    snapshot, bad = contents.snapshot, contents.bad
    return {
        **_partition_row(files),
        "segments": [
            {"file": segment.path.name, "first_index": segment.first_index, "bytes": segment.size}
            for segment in files.segments
        ],
        "entries": {"first": contents.first_index, "last": contents.last_index, "count": contents.entries},
        "kinds": contents.kinds,
        "leader_epoch": contents.last_epoch,
        "timestamp_us": contents.timestamp_us,
        "offsets": {"start": contents.log_start_offset, "end": contents.log_end_offset},
        "batches": contents.batches,
        "staged": documents(contents.staged, _STAGED),
        "groups": [
            {"group": group, "offset": cursor.offset, "kind": cursor.kind, "moved_us": cursor.moved_us}
            for group, cursor in contents.cursors
        ],
        "snapshot": None
        if snapshot is None
        else {
            "last_index": snapshot.last_index,
            "leader_epoch": snapshot.last_epoch,
            "timestamp_us": snapshot.timestamp_us,
            "log_start_offset": snapshot.state.log_start_offset,
            "log_end_offset": snapshot.state.next_offset,
        },
        "aside": [
            {
                "directory": aside.path.name,
                "bytes": aside.size,
                "files": [{"file": name, "bytes": size} for name, size in aside.files],
                "why": aside.why,
            }
            for aside in files.asides
        ],
        "ends_early": None
        if bad is None
        else {"segment": bad.segment, "position": bad.position, "entry": bad.next_index, "reason": bad.reason},
    }


def _write_shown(shown: dict[str, Any]) -> None:
    write(f"{shown['topic'] or '?'} {shown['partition']}, topic id {shown['topic_id']}")
    write(f"log {shown['log_id']}, durability {shown['durability']}, stopped {'' if shown['clean'] else 'not '}cleanly")
    entries = shown["entries"]
    flushed = "not known how far" if shown["flushed"] is None else f"noted as flushed up to {shown['flushed']}"
    write(f"entries {entries['first']} to {entries['last']}, {flushed}, leader epoch {shown['leader_epoch']}")
    write("  " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(shown["kinds"].items())))
    start, end = shown["offsets"]["start"], shown["offsets"]["end"]
    write(
        f"offsets {start} to {end} (exclusive); batches that were given offsets by these entries: {shown['batches']:,}"
    )
    if shown["snapshot"] is not None:
        write(f"a snapshot stands for the entries up to {shown['snapshot']['last_index']}")
    for segment in shown["segments"]:
        write(f"segment {segment['file']}: {bytes_text(segment['bytes'])}")
    for batch in shown["staged"]:
        due = f", due {time_text(batch['due_us'])}" if batch["due_us"] else ""
        whose = f" of {batch['query']}, micro-batch {batch['batch_id']}" if batch["query"] else ""
        write(f"staged {batch['uuid']}{whose}: {counted(batch['records'], 'record')}, entry {batch['entry']}{due}")
    for group in shown["groups"]:
        write(f"group {group['group']} ({group['kind']}): next offset {group['offset']}")
    for aside in shown["aside"]:
        names = ", ".join(f"{each['file']} ({bytes_text(each['bytes'])})" for each in aside["files"])
        write(f"{aside['directory']}: {names or 'nothing'}\n  {aside['why'].strip()}")
    if shown["ends_early"] is not None:
        early = shown["ends_early"]
        _say_bad(early["entry"], early["position"], early["segment"], early["reason"])


def _say_bad(entry: int, position: int, segment: int, reason: str) -> None:
    say(
        f"entry {entry} cannot be read at byte {position} of segment {segment}: {reason}; see `tritonmq storage verify`"
    )


def _entry_row(step: Step) -> dict[str, Any]:
    from mq_broker.core.messages import Published

    frame, entry = step.frame, step.frame.entry
    return {
        "index": entry.index,
        "segment": frame.segment,
        "position": frame.position,
        "bytes": frame.end - frame.position,
        "leader_epoch": entry.leader_epoch,
        "timestamp_us": entry.timestamp_us,
        "kind": type(entry.operation).__name__,
        "uuid": entry.uuid.hex() if any(entry.uuid) else "",
        "records": entry.record_count,
        "payload_bytes": entry.payload_bytes,
        "offsets": [
            [change.base_offset, change.base_offset + change.record_count]
            for change in step.changes
            if isinstance(change, Published)
        ],
    }


def _verified(directory: InspectedDirectory, checked: list[Checked], findings: list[Finding]) -> dict[str, Any]:
    from mq_broker.storage.inspecting.checking import UNCOVERED, is_damage

    return {
        "path": str(directory.path),
        "damaged": is_damage(findings),
        "partitions": len(checked),
        "entries": sum(each.entries for each in checked),
        "bytes": sum(each.size for each in checked),
        "findings": [
            {
                "kind": each.kind,
                **dict(zip(("topic", "partition"), _whose(checked, each), strict=True)),
                "file": str(each.path),
                **document(each, json_only("position", "end", "entries", "what", "repair")),
            }
            for each in findings
        ],
        "covered_by_no_checksum": [{"files": names, "why": why} for names, why in UNCOVERED],
    }


def _write_verified(checked: list[Checked], findings: list[Finding]) -> None:
    from mq_broker.storage.inspecting.checking import UNCOVERED, is_damage

    if findings:
        rows = [
            (each.kind, *_whose(checked, each), each.path, _or_blank(each.position), _entries_text(each), each.what)
            for each in findings
        ]
        write_table(["", "topic", "#partition", "file", "#byte", "entries", "what"], rows)
    total, entries = sum(each.size for each in checked), sum(each.entries for each in checked)
    verdict = "DAMAGED" if is_damage(findings) else "whole"
    say(f"{counted(len(checked), 'partition')}, {entries:,} good entries, {bytes_text(total)} read: {verdict}")
    repairs: dict[str, list[str]] = {}
    for each in findings:
        if each.repair:
            topic, number = _whose(checked, each)
            place = f"{topic} {number}" if topic else each.path.parent.name
            repairs.setdefault(each.repair, []).append(f"{place} {each.path.name}")
    for repair, files in repairs.items():
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        say(f"{', '.join(list(dict.fromkeys(files))[:3])}{more}: {repair}")
    for names, why in UNCOVERED:
        say(f"not covered by a checksum: {names} ({why})")


def _whose(checked: list[Checked], finding: Finding) -> tuple[str, int | str]:
    """The topic's name, or its id if that is not known, and the partition; both empty for what is of none."""
    for each in checked:
        if finding.path.is_relative_to(each.files.path):
            return each.topic or each.files.place.topic_id, each.files.place.partition
    return "", ""


def _or_blank(position: int | None) -> object:
    return "" if position is None else position


def _entries_text(finding: Finding) -> str:
    if finding.entries is None:
        return ""
    first, last = finding.entries
    if last is None:
        return f"{first} and on"
    return str(first) if last <= first else f"{first} to {last}"
