"""How amounts and text from outside are shown to people, alike in commands and pages. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def counted(count: int, thing: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def time_text(timestamp_us: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC; empty for 0."""
    if not timestamp_us:
        return ""
    return (
        datetime.fromtimestamp(timestamp_us / 1_000_000, tz=UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def duration_text(milliseconds: int) -> str:
    """`12s`, `14m`, `3h`, `2d`: whole units, rounded down."""
    seconds = milliseconds // 1000
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def bytes_text(count: int) -> str:
    """`1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def printable(text: str, keep: str = "") -> str:
    """The text with each character that is not seen as an escape (`\\x1b`, `\\u202e`), but for those to `keep`: control
    characters forge lines, format characters turn the direction of text round."""
    if text.isprintable():
        return text
    return "".join(
        character if character in keep or character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
