"""The contract of a store: what holds of ZooKeeper, of the file and of the simulator's alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from mq_broker.coordination.file import FileStore
from mq_broker.coordination.store import (
    TRANSACTION_BYTES_MAX,
    Change,
    Check,
    Make,
    Node,
    Put,
    Remove,
    Store,
    Written,
    surely,
)
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_broker.core.messages import CasOutcome
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest
from tests.mq_broker.coordination.wire import LASTING_MS, WAIT_S
from tests.simulation.real.zookeeper import Session
from tests.virtual.world import in_virtual_time, the_world


class Kind(NamedTuple):
    """`session`: a new one with the same nodes, for a block. `shared`: several may be open at once."""

    run: Callable[[Awaitable[None]], None]
    session: Callable[[], AbstractAsyncContextManager[Store]]
    shared: bool


@pytest.fixture(params=["zookeeper", "file", "simulator"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, root: str) -> Kind:
    hosts = request.getfixturevalue("zookeeper") if request.param == "zookeeper" else ""

    def made() -> Store:
        if request.param == "file":
            return FileStore(tmp_path / "cluster")
        if hosts:
            return ZooKeeperStore(hosts, LASTING_MS, root)
        world = the_world()
        process = world.process("store", tmp_path / "disk")
        return process.context.run(Session, world.zookeeper(root, LASTING_MS / 1000))

    @asynccontextmanager
    async def session() -> AsyncIterator[Store]:
        store = made()
        await store.start(lambda _event: None)
        try:
            yield store
        finally:
            await store.stop()

    run = in_virtual_time if request.param == "simulator" else asyncio.run
    return Kind(run, session, request.param != "file")  # type: ignore[arg-type]


async def done(store: Store, *changes: Change) -> tuple[int, ...]:
    written = await store.transact(changes)
    assert written.done, written
    return written.versions


async def refused(store: Store, *changes: Change) -> int:
    written = await store.transact(changes)
    assert written.outcome is CasOutcome.REFUSED
    return written.at


async def found(store: Store, path: str) -> Node:
    node = await store.get(path)
    assert node is not None
    return node


async def told(event: asyncio.Event) -> None:
    async with asyncio.timeout(WAIT_S):
        await event.wait()
    event.clear()


def test_a_node_is_as_it_was_made_and_its_version_counts_what_was_put(kind: Kind) -> None:
    async def main() -> None:
        async with kind.session() as store:
            assert await store.get("a") is None
            assert await done(store, Make("a", "é".encode()), Make("a/b")) == (0, 0)
            made = await found(store, "a")
            assert (made.data, made.version, made.mine) == ("é".encode(), 0, False)
            assert await done(store, Put("a", b"1", 0)) == (1,)
            assert await done(store, Put("a", b"2")) == (2,)
            assert await found(store, "a") == (b"2", 2, made.born, False)
            assert [node and node.data for node in await store.get_all(["a/b", "none", "a"])] == [b"", None, b"2"]
            assert await store.get_all([]) == []
        async with kind.session() as store:
            assert await found(store, "a") == (b"2", 2, made.born, False)

    kind.run(main())


def test_changes_are_made_in_order_and_each_sees_those_before_it(kind: Kind) -> None:
    async def main() -> None:
        async with kind.session() as store:
            versions = await done(store, Make("a"), Make("a/b", b"x"), Put("a/b", b"y", 0), Put("a/b", b"z", 1))
            assert versions == (0, 0, 1, 2)
            assert (await done(store, Check("a/b", 2), Remove("a/b", 2), Make("a/b", b"new")))[-1] == 0
            assert (await found(store, "a/b")).data == b"new"

    kind.run(main())


def test_a_transaction_that_is_refused_says_which_change_and_makes_none(kind: Kind) -> None:
    async def main() -> None:
        async with kind.session() as store:
            await done(store, Make("a", b"x"), Make("a/b"), Make("c"))
            first = (Put("a", b"changed"), Make("d"), Make("d/e"), Remove("c"))
            for wrong in (
                *(Make("a"), Make("none/b"), Put("none", b""), Put("a", b"", 7), Check("a", 7), Check("none", 0)),
                *(Remove("a"), Remove("a/b", 7), Remove("none")),
            ):
                assert await refused(store, *first, wrong) == len(first), wrong
                assert await refused(store, wrong) == 0
            assert (await found(store, "a"))[:2] == (b"x", 0)
            assert await store.get("d") is None
            assert await store.get("c") is not None

    kind.run(main())


def test_the_names_below_a_node_are_listed(kind: Kind) -> None:
    async def main() -> None:
        async with kind.session() as store:
            assert await store.children("a") is None
            await done(store, Make("a"), Make("a/b"), Make("a/c"), Make("a/b/deep"))
            assert sorted(await store.children("a") or ()) == ["b", "c"]
            await done(store, Remove("a/c"))
            assert await store.children("a") == ["b"]
            assert await store.children("a/b/deep") == []

    kind.run(main())


def test_who_watches_is_told_of_the_next_change_and_of_no_other_node(kind: Kind) -> None:
    async def main() -> None:
        async with kind.session() as store:
            await done(store, Make("a"), Make("b"), Make("a/c"))
            data, names = asyncio.Event(), asyncio.Event()
            for change in (Put("a", b"1"), Make("a/d"), Remove("a/d"), Make("b/x"), Put("a/c", b"")):
                await store.get("a", data.set)
                await store.children("a", names.set)
                await done(store, change)
                if isinstance(change, Put) and change.path == "a":
                    await told(data)
                elif change.path == "a/d":
                    await told(names)
                await store.get("b")  # whatever it was told by that change it has been told by now
                assert not data.is_set()
                assert not names.is_set()
            await done(store, Remove("a/c"))
            await told(names)
            await done(store, Remove("a"))
            await told(data)

    kind.run(main())


def test_what_is_ephemeral_ends_with_its_session_and_has_nothing_below_it(kind: Kind) -> None:
    async def main() -> None:
        async with kind.session() as store:
            await done(store, Make("a"), Make("a/mine", b"x", ephemeral=True))
            assert (await found(store, "a/mine")).mine
            await done(store, Put("a/mine", b"y", 0))
            assert not (await store.transact([Make("a/mine/b")])).done
            if kind.shared:
                gone = asyncio.Event()
                async with kind.session() as other:
                    assert not (await found(other, "a/mine")).mine
                    await done(other, Make("a/other", ephemeral=True))
                    await store.get("a/other", gone.set)
                await told(gone)
                assert await store.children("a") == ["mine"]
        async with kind.session() as store:
            assert await store.get("a/mine") is None
            await done(store, Make("a/mine", ephemeral=True))

    kind.run(main())


def test_what_is_made_later_is_born_higher_over_all_sessions(kind: Kind) -> None:
    async def main() -> None:
        born = []
        for turn in range(3):
            async with kind.session() as store:
                await surely(store, [Make("a")])
                for number in range(3):
                    await done(store, Make(f"a/{turn}{number}", ephemeral=number < 2))
                    born.append((await found(store, f"a/{turn}{number}")).born)
                await done(store, Remove(f"a/{turn}2"))
        assert born == sorted(set(born))

    kind.run(main())


def test_sequential_nodes_have_numbers_that_grow(kind: Kind) -> None:
    async def main() -> None:
        async with kind.session() as store:
            await done(store, Make("a"))
            for mark in ("z-", "y-", "x-"):
                await done(store, Make(f"a/{mark}", ephemeral=True, sequential=True))
            names = sorted(await store.children("a") or (), key=lambda name: name[2:])
            assert [name[:2] for name in names] == ["z-", "y-", "x-"]
            assert all(len(name) == 12 and name[2:].isdigit() for name in names)

    kind.run(main())


def test_many_at_once_each_have_their_own_answer(kind: Kind) -> None:
    async def main() -> None:
        count, stale = 350, {7, 100, 101, 349}
        async with kind.session() as store:
            await done(store, Make("a"), *(Make(f"a/{number}") for number in range(count)))
            puts = ([Put(f"a/{n}", f"{n}".encode(), 5 if n in stale else 0)] for n in range(count))
            answers = await asyncio.gather(*(store.transact(put) for put in puts))
            refusal = Written(CasOutcome.REFUSED, at=0)
            assert answers == [refusal if n in stale else Written(CasOutcome.DONE, (1,)) for n in range(count)]
            nodes = await asyncio.gather(*(store.get(f"a/{number}") for number in range(count + 1)))
            assert [node and node.data for node in nodes[:-1]] == [
                b"" if n in stale else f"{n}".encode() for n in range(count)
            ]
            assert nodes[-1] is None

    kind.run(main())


def test_of_many_who_change_one_version_one_is_done(kind: Kind) -> None:
    async def main() -> None:
        async with kind.session() as store:
            await done(store, Make("a"), Make("b"))
            both = ([Put("a", b"%d" % n, 0), Put("b", b"%d" % n)] for n in range(20))
            answers = await asyncio.gather(*(store.transact(changes) for changes in both))
            (winner,) = (number for number, written in enumerate(answers) if written.done)
            assert [written.at for written in answers if not written.done] == [0] * 19
            assert [node and node[:2] for node in await store.get_all(["a", "b"])] == [(b"%d" % winner, 1)] * 2

    kind.run(main())


def test_more_than_a_store_takes_at_once_is_refused_and_harms_nobody(kind: Kind) -> None:
    async def main() -> None:
        async with kind.session() as store:
            with pytest.raises(InvalidRequest, match="at once"):
                await store.transact([Make("a", b"x" * TRANSACTION_BYTES_MAX)])
            assert await done(store, Make("a", b"x" * (TRANSACTION_BYTES_MAX - 100))) == (0,)

    kind.run(main())


def test_a_store_that_has_stopped_says_so_at_once(kind: Kind) -> None:
    async def main() -> None:
        async with kind.session() as store:
            pass
        async with asyncio.timeout(WAIT_S):
            for asked in (store.get("a"), store.get_all(["a"]), store.children("a"), surely(store, [Make("a")])):
                with pytest.raises(CoordinationUnavailable):
                    await asked

    kind.run(main())
