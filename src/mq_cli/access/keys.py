"""`tritonmq keys`: the keys that brokers seal their data with, in a file."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mq_cli.commands import argument, command_group, flag, option
from mq_cli.output import JSON, Column, both, say, show
from mq_cli.values import DIRECTORY_THERE

if TYPE_CHECKING:
    from mq_broker.storage.key_file import KeyFile


@command_group()
def keys() -> None:
    """Make, list, rotate, rewrap and retire the keys that brokers seal their data with.

    KEYREF is file:PATH, or one of another provider, which makes and retires keys itself.

    Needs `pip install '.[security]'` in a clone of TritonMQ.
    """


def _path_of(_context: click.Context, _option: click.Parameter, encrypt: str) -> Path:
    from mq_broker.storage.key_provider import aead

    scheme, _, rest = encrypt.partition(":")
    if scheme != "file" or not rest:
        raise click.UsageError(f"--encrypt {encrypt}: keys are made and removed in a file here: give file:PATH")
    aead()  # without it nobody could use them
    return Path(rest)


ENCRYPT: Final = option("The keys, as file:PATH.", required=True, metavar="KEYREF")
KEY_FILE: Final = option("The keys, as file:PATH.", "--encrypt", required=True, metavar="KEYREF", callback=_path_of)
NAME: Final = argument(default="default")


def _data(*, required: bool) -> Any:
    return option(
        "The data directory of a broker that is stopped. More than one may be given.",
        "--data",
        type=DIRECTORY_THERE,
        multiple=True,
        required=required,
        metavar="DIR",
    )


@keys.command()
def create(name: str = NAME, path: Path = KEY_FILE) -> None:
    """Make the first key called NAME, and the file if there is none. `default` seals every topic that names no key.

    Keep a copy of the file elsewhere: without it nothing that is sealed can be read again.
    """
    with _changing(path):
        content = _read(path, new=True)
        if name in content.current:
            raise click.ClickException(f"{path} has a key called {name}: `tritonmq keys rotate` makes a newer one")
        _make(path, content, name)


@keys.command()
def rotate(name: str = NAME, path: Path = KEY_FILE) -> None:
    """Make a newer key called NAME. A broker uses it when it starts again, or two segments later.

    The older ones stay: what they seal needs them. `rewrap` changes that.
    """
    with _changing(path):
        content = _read(path)
        if name not in content.current:
            raise click.ClickException(f"{path} has no key called {name}: `tritonmq keys create {name}` makes one")
        _make(path, content, name)


@keys.command("list")
def list_keys(
    as_json: bool = JSON, path: Path = KEY_FILE, directories: tuple[Path, ...] = _data(required=False)
) -> None:
    """List the keys, and with --data how many files each seals there."""
    content = _read(path)
    used = _used(directories)
    newest = {key_id: name for name, key_id in content.current.items()}
    rows = [
        {
            "key": key_id,
            "newest_of": newest.get(key_id, ""),
            "files": used[key_id],
            "absent": key_id not in content.keys,
        }
        for key_id in sorted({*content.keys, *used})
    ]
    columns = (
        *both("key"),
        Column("newest_of"),
        Column("", "newest called", lambda row: "ABSENT from the file" if row["absent"] else row["newest_of"]),
        Column("files", "#files", text=lambda files: files if directories else ""),
        Column("absent"),
    )
    show(rows, columns, as_json=as_json)


@keys.command()
def rewrap(
    name: str = NAME,
    encrypt: str = ENCRYPT,
    directories: tuple[Path, ...] = _data(required=True),
    former: str | None = option("Only what this key seals. Default: every older key of NAME.", "--from", metavar="KEY"),
) -> None:
    """Have the newest key called NAME seal what older ones of that name seal. Writes heads of files, not records."""
    from mq_broker.storage.files import OsFiles
    from mq_broker.storage.keyring import Keyring
    from mq_broker.storage.opening.rewrapping import rewrap, sealed_files

    ring = Keyring(encrypt)
    key_id = ring.current(name)
    done = left = 0
    for data in directories:
        with _alone(data):
            for found in sealed_files(data):
                if former:
                    named = former in [slot.key_id for slot in found.slots]
                else:
                    named = found.slot.key_id.rpartition("-")[0] == name
                if not named or found.is_wrapped_by(key_id):
                    left += 1
                    continue
                try:
                    rewrap(found, ring, key_id, OsFiles())
                except OSError as error:
                    raise click.ClickException(f"{found.path} takes no new key ({error}): do it again") from error
                done += 1
    say(f"{done} files are sealed with {key_id} now, {left} were left as they are")


@keys.command()
def retire(
    key: str = argument(),
    path: Path = KEY_FILE,
    directories: tuple[Path, ...] = _data(required=True),
    shred: bool = flag("Remove it although it is used: what it seals is lost for ever."),
    yes: bool = flag("With --shred: do not ask."),
) -> None:
    """Remove KEY from the file, if nothing in the data directories is sealed with it.

    Give every data directory of the brokers that use this file.
    """
    from mq_broker.storage.key_file import write_key_file

    with _changing(path), contextlib.ExitStack() as locked:
        content = _read(path)
        if key not in content.keys:
            raise click.ClickException(f"{path} has no key {key!r}: see `tritonmq keys list`")
        for data in directories:
            locked.enter_context(_alone(data))
        _settle(directories)
        used = _used(directories)[key]
        if used and not shred:
            raise click.ClickException(
                f"{used} files are sealed with {key}: `tritonmq keys rewrap` first, or --shred to lose them for ever"
            )
        newest_of = [name for name, key_id in content.current.items() if key_id == key]
        if newest_of and not shred:
            raise click.ClickException(f"{key} is what brokers seal with: `tritonmq keys rotate {newest_of[0]}` first")
        if shred and not yes:
            click.confirm(
                f"{used} files are sealed with {key}, and will be lost for ever. Go on?", abort=True, err=True
            )
        del content.keys[key]
        for name in newest_of:
            del content.current[name]
        with _writing(path):
            write_key_file(path, content)
    say(f"{key} is gone from {path}. Copies of that file still have it")


# ------------------------------------------------------------------ what is asked


def _read(path: Path, *, new: bool = False) -> KeyFile:
    from mq_broker.storage.key_file import KeyFile, read_key_file

    if new and not path.exists():
        return KeyFile()
    return read_key_file(path)


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[None]:
    """From reading the file to writing it, so that no other command's key is written over."""
    from mq_broker.storage.key_file import changing

    with contextlib.ExitStack() as held:
        with _writing(path):
            held.enter_context(changing(path))
        yield


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.ClickException(
            f"{path} cannot be written ({error.strerror}): it, its directory and {path}.lock must belong to who runs "
            "this; or choose another place"
        ) from error


def _make(path: Path, content: KeyFile, name: str) -> None:
    from mq_broker.storage.key_file import add_key

    with _writing(path):
        key_id = add_key(path, content, name)
    say(f"{key_id} is in {path} now. Keep a copy of that file elsewhere: without it nothing sealed can be read again")


def _settle(directories: tuple[Path, ...]) -> None:
    from mq_broker.storage.files import OsFiles
    from mq_broker.storage.opening.rewrapping import settle

    for data in directories:
        try:
            settle(data, OsFiles())
        except OSError as error:
            raise click.ClickException(
                f"{data} cannot be synced ({error}): check that disk. No key was removed"
            ) from error


def _used(directories: tuple[Path, ...]) -> Counter[str]:
    from mq_broker.storage.opening.rewrapping import uses

    return sum((uses(data) for data in directories), Counter[str]())


@contextlib.contextmanager
def _alone(data: Path) -> Iterator[None]:
    """No broker runs there, and none can start: one that runs has data keys that are on no disk yet."""
    from mq_broker.storage.opening.directory import locked

    with locked(data):
        yield
