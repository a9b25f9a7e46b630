"""`tritonmq cert`: the certificates of a cluster, made on a machine that keeps the authority's key."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mq_cli.access.principals import say_if_unknown, told_of_brokers
from mq_cli.commands import argument, command_group, flag, option
from mq_cli.connection import CONNECTION, DEFAULT_BOOTSTRAP, Connection
from mq_cli.output import say, write_line, write_table
from mq_cli.values import checking_what_was_typed
from mq_protocol.access.pem import BROKER_NAME, CA_FILE, open_to_others
from mq_protocol.errors import InvalidSetting, TritonMQError
from mq_protocol.names import user_named

if TYPE_CHECKING:
    from cryptography import x509

    from mq_client import Security
    from mq_client.administration.security_admin import KnownEntry

CREDENTIAL: Final = "zookeeper.auth"
RENEW_DAYS: Final = 30

_ASK_MS: Final = 5_000


_PATH: Any = click.Path(path_type=Path)
DIR: Final = option("The directory of the certificates.", "--dir", type=_PATH, default=Path("certs"), metavar="PATH")
KEY_OF_CA: Final = option(
    "The authority's key. Keep it on a machine of its own.", type=_PATH, default=Path("ca.key"), metavar="PATH"
)


def _days(default: int) -> Any:
    return option("How long it is valid.", type=click.IntRange(1), default=default)


@command_group(short_help="Make, show, check, renew and revoke certificates.")
def cert() -> None:
    """Make, show, check, renew and revoke the certificates of a cluster.

    Needs `pip install '.[security]'` in a clone of TritonMQ.
    """


@cert.command("create-ca")
def create_ca(
    directory: Path = DIR,
    ca_key: Path = KEY_OF_CA,
    days: int = _days(3_650),
) -> None:
    """Make the authority that signs all certificates of a cluster.

    ca.crt goes to every broker and client. The authority's key stays where it is.
    """
    with checking_what_was_typed():
        from mq_dev.certificates import Authority

        Authority.create(directory, ca_key, days)
    click.echo(f"{directory / CA_FILE}\n{ca_key}")
    if ca_key.absolute().is_relative_to(directory.absolute()):
        say(
            f"warning: {ca_key} lies among the files that go to brokers and clients. Who has it can be anybody: move it"
        )


@cert.command("create-broker")
def create_broker(
    numbers: tuple[int, ...] = option(
        "The broker's id. May be repeated.", "--id", type=click.IntRange(1), required=True, multiple=True
    ),
    hosts: tuple[str, ...] = option(
        "By which clients and other brokers reach it. May be repeated.",
        "--host",
        required=True,
        multiple=True,
        metavar="NAME|IP",
    ),
    directory: Path = DIR,
    ca_key: Path = KEY_OF_CA,
    days: int = _days(365),
) -> None:
    """Make a broker's certificate: a directory with all that `tritonmq broker --certs` needs on its machine.

    The brokers' credential for ZooKeeper is in it too, as zookeeper.auth. It is made beside the authority's key once.
    """
    with checking_what_was_typed():
        from mq_broker.coordination.credential import Credential
        from mq_dev.certificates import Authority, broker_directory, write_broker, write_private

        authority = Authority.open(directory, ca_key)
        for number in numbers:
            own = broker_directory(directory, number)
            _refuse_to_replace(
                own / f"{BROKER_NAME}.crt",
                f"`tritonmq cert renew --within 36500` makes all anew for the same hosts. For others move {own} "
                "away first",
            )
        credential = Credential.make(ca_key.with_name(CREDENTIAL))
        for number in numbers:
            own = write_broker(authority, directory, number, hosts, days)
            write_private(own / CREDENTIAL, credential.line)
            write_line(own)


@cert.command("create-client")
def create_client(
    name: str = argument(),
    replace: bool = flag("Make another for a user who has one. Brokers take the former one too."),
    directory: Path = DIR,
    ca_key: Path = KEY_OF_CA,
    days: int = _days(365),
) -> None:
    """Make the certificate of user NAME. `admin` is a superuser by default."""
    if name.startswith("Broker:"):
        raise click.UsageError(f"{name} is no user: `tritonmq cert create-broker --id N` makes a broker's certificate")
    with checking_what_was_typed():
        name = user_named(name)
        from mq_dev.certificates import Authority, client_file, write_client

        authority = Authority.open(directory, ca_key)
        path = directory / f"{client_file(name)}.crt"
        if not replace:
            again = shlex.join(["tritonmq", "cert", "create-client", name, "--replace"])
            _refuse_to_replace(path, f"`{again}` makes another in its place")
        elif not path.exists():
            raise InvalidSetting(f"there is no {path} to replace: correct the name, or leave out --replace")
        for written in write_client(authority, directory, name, days):
            write_line(written)


@cert.command()
def show(directory: Path = DIR) -> None:
    """Show whose each certificate is, for which hosts, and until when. Each authority in a ca.crt has a line."""
    with checking_what_was_typed():
        rows = [row for path in _found(directory) for row in _rows(path, directory)]
    write_table(("file", "whose", "hosts", "valid until", "serial"), rows)


@cert.command()
def check(
    directory: Path = DIR,
    bootstrap: str | None = option(
        f"Ask brokers a question there too, such as {DEFAULT_BOOTSTRAP}.", metavar="HOST:PORT,…"
    ),
    user: str | None = option("As this user. Default: the only one.", metavar="NAME"),
) -> int:
    """Find what is wrong with the certificates: keys open to others, pairs that do not match, dates, authorities."""
    faults = 0
    with checking_what_was_typed():
        paths = _found(directory)
    for path in paths:
        fault = _fault(path, directory)
        faults += bool(fault)
        write_line(f"{path}: {fault or 'good'}")
    for address, wrong in _tried(directory, bootstrap, user) if bootstrap else ():
        faults += bool(wrong)
        write_line(f"{address}: {wrong or 'good'}")
    return 1 if faults else 0


@cert.command()
def renew(
    directory: Path = DIR,
    ca_key: Path = KEY_OF_CA,
    days: int = _days(365),
    within_days: int = option(
        "Renew what ends so soon.", "--within", type=click.IntRange(0), default=RENEW_DAYS, metavar="DAYS"
    ),
) -> None:
    """Make certificates that end soon anew, for the same names.

    Brokers and clients take the new files without a restart.
    """
    with checking_what_was_typed():
        from mq_dev.certificates import Authority, certificates_of

        authority = Authority.open(directory, ca_key)
        limit = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=within_days)
        made = {path: certificates_of(path)[0] for path in _found(directory) if path.name != CA_FILE}
        for path, found in made.items():
            if found.not_valid_after_utc <= limit:
                authority.again(found, days).write(path.parent, path.stem)
                write_line(path)
    first = min((found.not_valid_after_utc for found in made.values()), default=None)
    if first is None:
        say(f"{directory} holds no certificate but that of the authority")
    elif first > limit:
        say(f"nothing ends within {within_days} days: the first certificate ends on {first:%Y-%m-%d}")


@cert.command()
def revoke(
    who: tuple[str, ...] = argument("[User:NAME|SERIAL]...", nargs=-1),
    undo: bool = flag("Take it back."),
    listing: bool = flag("Show what is revoked.", "--list"),
    force: bool = flag("Also the beginning of a longer serial, and a broker's."),
    connection: Connection = CONNECTION,
) -> int:
    """Refuse users or certificates from now on, at every broker, and end what they have open.

    User:NAME is every certificate of that name, those made later as well. A serial, whole, as `tritonmq cert show`
    tells it, is one certificate: `tritonmq cert create-client NAME --replace` gives its user another. What no broker
    has seen since it started is revoked too, with a warning.
    """
    if listing == bool(who):
        raise click.UsageError("name User:NAME or a serial, or give --list")
    with connection.admin() as admin:
        if listing:
            for entry in admin.revoked():
                write_line(entry)
            return 0
        known = [] if undo else admin.known_to_brokers(*who)
        if not force:
            _refuse_what_is_not_meant(known)
        done = admin.revoke(*who, undo=undo)
    for each in known:
        _say_whose(each)
    count, there = (done.removed, "was not revoked") if undo else (done.added, "was revoked already")
    missed = len(set(who)) - count
    write_line(f"{count} {'no longer revoked' if undo else 'revoked'}" + (f", {missed} {there}" if missed > 0 else ""))
    return told_of_brokers(done)


# ------------------------------------------------------------------ private


def _refuse_what_is_not_meant(known: Sequence[KnownEntry]) -> None:
    for each in known:
        if each.longer:
            raise click.UsageError(
                f"{each.entry} is the beginning of a serial, and a certificate is revoked by all of it: "
                f"{', '.join(each.longer)}. --force revokes {each.entry} as it is"
            )
        if each.whose.startswith("Broker:"):
            raise click.UsageError(
                f"{each.entry} is the certificate of {each.whose}. Revoked, it cannot ask as a client, which no broker "
                "does, and the ports for brokers take it still: docs/tls.md says what to do about a broker's key that "
                "was stolen. --force revokes it nevertheless"
            )


def _say_whose(known: KnownEntry) -> None:
    if known.whose in ("", known.entry):
        write_line(known.entry)
    else:
        write_line(f"{known.entry}: a certificate of {known.whose}")
    if ":" in known.entry:
        say_if_unknown(known)
    elif not known.whose:
        say(
            f"warning: no broker has seen the serial {known.entry} since it started. `tritonmq cert show` tells serials"
        )


def _refuse_to_replace(path: Path, otherwise: str) -> None:
    if path.exists():
        raise InvalidSetting(f"{path} is there already: {otherwise}")


def _found(directory: Path) -> list[Path]:
    found = [path for pattern in ("*.crt", "*/*.crt") for path in sorted(directory.glob(pattern))]
    if not found:
        raise InvalidSetting(
            f"{directory} holds no certificate: `tritonmq cert create-ca --dir {directory}` is the first"
        )
    return found


def _rows(path: Path, directory: Path) -> list[tuple[str, ...]]:
    """One for each authority of a file of them, else one: what stands behind a certificate is its chain."""
    from mq_dev.certificates import certificates_of, hosts_of

    found, file = certificates_of(path), str(path.relative_to(directory))
    if path.name == CA_FILE:
        return [(file, "authority", "", _date(each), f"{each.serial_number:x}") for each in found]
    first, until = found[0], min(found, key=lambda each: each.not_valid_after_utc)
    return [(file, _whose(first), ", ".join(hosts_of(first)), _date(until), f"{first.serial_number:x}")]


def _date(certificate: x509.Certificate) -> str:
    return certificate.not_valid_after_utc.strftime("%Y-%m-%d")


def _whose(certificate: x509.Certificate) -> str:
    from mq_dev.certificates import principal_of

    try:
        return str(principal_of(certificate))
    except TritonMQError as error:
        return f"nobody: {error}"


def _fault(path: Path, directory: Path) -> str:
    """What is wrong with it; empty if nothing is."""
    from mq_dev.certificates import certificates_of, principal_of
    from mq_protocol.access.pem import Files, examine, read

    try:
        if path.name == CA_FILE:
            now = datetime.datetime.now(datetime.UTC)
            ended = [each for each in certificates_of(path) if each.not_valid_after_utc <= now]
            return f"{len(ended)} of its authorities have expired" if ended else ""
        ca = path.with_name(CA_FILE)
        files = Files(ca if ca.exists() else directory / CA_FILE, path, path.with_suffix(".key"))
        if fault := open_to_others(files.key):
            return fault
        shown = examine(read(files), server=principal_of(certificates_of(path)[0]).kind == "Broker")
    except TritonMQError as error:
        return str(error)
    left = datetime.datetime.fromtimestamp(shown.not_after, datetime.UTC) - datetime.datetime.now(datetime.UTC)
    return f"it ends in {left.days} days: `tritonmq cert renew`" if left.days < RENEW_DAYS else ""


def _tried(directory: Path, bootstrap: str, user: str | None) -> list[tuple[str, str | None]]:

    from mq_client.cluster.client import Client
    from mq_client.cluster.connection import parse_bootstrap
    from mq_client.cluster.dialling import why_none
    from mq_client.cluster.listening import why_unreachable
    from mq_client.security import Security

    security = Security(directory, user)
    return [
        (address, why_unreachable(address) or why_none(address, Client((), security)) or _refusal(address, security))
        for address in parse_bootstrap(bootstrap)
    ]


def _refusal(address: str, security: Security) -> str | None:
    """Why a question is not answered; None if it is. A handshake does not say who is revoked."""
    from mq_client import Admin, TritonMQError

    try:
        with Admin(address, timeout_ms=_ASK_MS, security=security) as admin:
            admin.list_topics()
    except TritonMQError as error:
        return str(error)
    return None
