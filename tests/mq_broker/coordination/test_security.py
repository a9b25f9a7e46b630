"""Security documents: compare-and-set, all or nothing, told to every broker; in ZooKeeper and in a file."""

from __future__ import annotations

import pytest

from mq_broker.coordination.interface import (
    SECURITY_DOCUMENT_BYTES_MAX,
    CoordinationEvent,
    SecurityDocuments,
)
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.messages import CasOutcome
from mq_protocol.errors import InvalidRequest
from tests.coroutines import real_time
from tests.mq_broker.coordination.test_coordination import opened_beside
from tests.mq_broker.coordination.wire import Heard, Opener


def contents(documents: SecurityDocuments) -> dict[str, bytes]:
    return {name: data for name, (_, data) in documents.documents.items()}


@real_time
async def test_documents_are_written_as_they_are_and_kept(opened: Opener) -> None:
    async with opened() as service:
        first = await service.security.read()
        assert contents(first) == {}
        assert (await service.security.write({"acls/0": (-1, b"a"), "revoked": (-1, "é".encode())}))[
            0
        ] is CasOutcome.DONE
    async with opened() as service:
        found = await service.security.read()
        assert contents(found) == {"acls/0": b"a", "revoked": "é".encode()}
        assert found.version > first.version
        version = found.documents["acls/0"][0]
        outcome, told = await service.security.write({"acls/0": (version, b"b")})
        again = await service.security.read()
        assert (outcome, told) == (CasOutcome.DONE, again.version)
        assert contents(again)["acls/0"] == b"b"


@real_time
async def test_a_write_that_expects_another_version_of_one_document_changes_none(opened: Opener) -> None:
    async with opened() as service:
        store = service.security
        await store.write({"acls/0": (-1, b"a")})
        before = await store.read()
        version = before.documents["acls/0"][0]
        for wrong in (
            {"acls/0": (-1, b"x"), "acls/1": (-1, b"y")},
            {"acls/0": (version + 1, b"x"), "acls/1": (-1, b"y")},
            {"acls/0": (version, b"x"), "acls/1": (0, b"y")},
        ):
            assert await store.write(wrong) == (CasOutcome.REFUSED, -1)
        assert await store.read() == before


@real_time
async def test_whoever_has_read_is_told_of_every_change(opened: Opener) -> None:
    heard = Heard()
    async with opened(heard) as service, opened_beside(opened) as other:
        writer = service if isinstance(other, CoordinationService) else other
        for number in range(3):
            await service.security.read()
            heard.forget()
            await writer.security.write({f"acls/{number}": (-1, b"x")})
            await heard.until(CoordinationEvent.SECURITY_CHANGED)
            assert len((await service.security.read()).documents) == number + 1


@pytest.mark.parametrize(
    "wrong",
    [{"peer_secret": (-1, b"")}, {"../x": (-1, b"")}, {"acls/0": (-1, b"x" * (SECURITY_DOCUMENT_BYTES_MAX + 1))}],
)
@real_time
async def test_nothing_else_and_nothing_larger_is_written(opened: Opener, wrong: dict[str, tuple[int, bytes]]) -> None:
    async with opened() as service:
        with pytest.raises(InvalidRequest, match="security document"):
            await service.security.write({"acls/1": (-1, b"y"), **wrong})
        assert contents(await service.security.read()) == {}


@real_time
async def test_one_of_the_largest_size_is_written(opened: Opener) -> None:
    async with opened() as service:
        large = b"x" * SECURITY_DOCUMENT_BYTES_MAX
        assert (await service.security.write({"acls/0": (-1, large)}))[0] is CasOutcome.DONE
        assert contents(await service.security.read()) == {"acls/0": large}
