"""One ZooKeeper session seen from asyncio: kazoo's threads on one side, futures with deadlines on the other.

Knows nothing of what is asked (zookeeper.py does). kazoo's threads touch nothing here: they post onto the loop, in
the order in which things happened, and all state lives on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import ACL

from mq_broker.coordination.credential import Credential
from mq_broker.measured import COORDINATION
from mq_process.patience import TELL_S
from mq_protocol.access.pem import Files, context, open_to_others, read, verdict
from mq_protocol.errors import CoordinationUnavailable, InvalidSetting

_log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 512
"""Questions that kazoo may hold unanswered. Enough to keep a server busy (its throughput is flat from about 100 on);
what is more waits here, so that an absent server does not fill kazoo's queue, which has no bound of its own."""

RETRY_DELAY_MAX_S = 1.0
"""Between attempts to reconnect: a server that is back is found within this."""

ASK_AGAIN_S = 0.05
LOOK = "check that ZooKeeper is running and reachable"
STOP_TIMEOUT_S = 15.0

_LOST = (ConnectionLoss, SessionExpiredError, OperationTimeoutError, ConnectionClosedError)

StateListener = Callable[[str], None]
"""Called on the loop with kazoo's CONNECTED, SUSPENDED or LOST."""


class AnswerLost(Exception):
    """The question may or may not have reached the server."""


class Denied(AnswerLost):
    """Nothing was done, and asking again does not help: the server wants another credential, or the session is over."""


_ENDING_S: Final = 1.0


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """What a kazoo client over TLS connects with: what it needs for that, and does not do by itself.

    Kazoo's own connections trust every authority of the system beside the given one, and do not check the server's name
    unless told to. These trust one authority, show the broker's certificate, and check the name. Files are read anew
    for each connection, so replaced ones count from the next on.

    `fault`: why the last connection was not made; empty if it was.

    Raises `InvalidSetting` for files that are of no use.
    """

    def __init__(self, files: Files) -> None:
        super().__init__()
        self.fault = ""
        self._files = files
        self._dialled: tuple[tuple[str, int], str] | None = None
        self._context()

    def _context(self) -> ssl.SSLContext:
        if fault := open_to_others(self._files.key):
            raise InvalidSetting(fault)
        return context(read(self._files), server=False)

    def create_connection(self, *, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> ssl.SSLSocket:
        """In kazoo's thread. Raises `OSError`, which makes kazoo try again."""
        self.fault = ""
        self._dialled = address, hostname
        try:
            trusted = self._context()
            plain = socket.create_connection(address, timeout)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return trusted.wrap_socket(plain, server_hostname=hostname)
            except BaseException:
                plain.close()
                raise
        except ssl.SSLCertVerificationError as error:
            self.fault = f"the certificate of ZooKeeper at {hostname} is not good: {verdict(error)}"
            raise
        except ssl.SSLError as error:
            self.fault = f"ZooKeeper at {hostname}:{address[1]} does not speak TLS 1.3 there ({error.reason or error})"
            raise
        except InvalidSetting as error:
            self.fault = str(error)
            raise OSError(self.fault) from error

    def ending(self) -> str:
        """How the server that was dialled last ends a connection after its handshake; empty if it does not. In TLS 1.3
        a server refuses a certificate only then. Dials anew and waits for it, so in a thread."""
        if self._dialled is None:
            return ""
        address, hostname = self._dialled
        try:
            with self.create_connection(address=address, hostname=hostname, timeout=_ENDING_S) as connection:
                connection.settimeout(_ENDING_S)
                connection.recv(1)  # it says nothing before it is asked
                how = "says nothing more"
        except TimeoutError:
            return ""
        except ssl.SSLError as error:
            how = str(error.reason or error)
        except OSError as error:
            if self.fault or not isinstance(error, ConnectionResetError):
                return self.fault
            how = "reset"
        return (
            f"{hostname}:{address[1]} answers, and ends the connection over TLS ({how}). It does not take "
            f"{self._files.certificate}, or most of its ensemble is missing. If the authority that signed it is a new "
            "one, ZooKeeper must trust it: put it into the authorities of ZooKeeper, and start that again unless it "
            "takes files that are replaced"
        )

    def select(
        self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What is decrypted already is not seen by the system: kazoo would wait, and take the server for dead."""
        decrypted = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        readable, writable, failed = super().select(rlist, wlist, xlist, 0 if decrypted else timeout)
        return [*decrypted, *(one for one in readable if one not in decrypted)], writable, failed


class _AfterSync:
    """An answer of kazoo's that counts only if the sync before it was answered: else the two went over different
    connections. As much of kazoo's `AsyncResult` as is used here."""

    def __init__(self, sync: Any, answer: Any) -> None:
        self._sync = sync
        self._answer = answer

    def rawlink(self, callback: Callable[[Any], None]) -> None:
        self._answer.rawlink(lambda _answer: callback(self))

    @property
    def value(self) -> Any:
        return self._answer.value

    @property
    def exception(self) -> Any:
        return self._answer.exception if self._sync.successful() else ConnectionLoss("the sync before it was lost")


class _NoSecrets(logging.Filter):
    """Kazoo's lines below INFO show what is asked and answered: passwords, and what nodes hold."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO


_kazoo_log = _log.getChild("kazoo")
_kazoo_log.addFilter(_NoSecrets())


@dataclass(frozen=True, slots=True)
class _Watching:
    loop: asyncio.AbstractEventLoop
    callback: Callable[[], None]

    def __call__(self, event: Any) -> None:
        if event.type != "NONE":  # NONE: the connection, which the state tells
            _post(self.loop, self.callback)


class KazooSession:
    """Owns the kazoo client. Sessions follow one another by themselves: after LOST kazoo connects anew with a new
    one. `hosts`: `HOST:PORT[,HOST:PORT…][/PREFIX]`. `credential`: with which each of them begins. `tls`: its
    certificate, key and authority; None: plain text."""

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        connect_timeout_ms: int,
        request_timeout_ms: int,
        credential: Credential | None,
        tls: Files | None,
    ) -> None:
        self.hosts, _, prefix = hosts.partition("/")
        self.prefix = f"/{prefix.strip('/')}" if prefix.strip("/") else ""
        self._credential = credential
        self._tls = tls
        self.connected = False
        self._connect_timeout_s = connect_timeout_ms / 1000
        self.request_timeout_s = request_timeout_ms / 1000
        self._session_timeout_s = session_timeout_ms / 1000
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._changed = asyncio.Event()
        self._stopping = False
        self._client: KazooClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: StateListener = lambda _state: None

    # -------------------------------------------------------------- life

    async def open(self, listener: StateListener) -> None:
        """Connect. The first CONNECTED is this call's return, not an event. Raises `CoordinationUnavailable`, and
        `InvalidSetting` for files of no use."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=RETRY_DELAY_MAX_S)
        handler = None if self._tls is None else TlsHandler(self._tls)
        try:
            self._client = KazooClient(
                hosts=self.hosts,
                timeout=self._session_timeout_s,
                connection_retry=retry,
                logger=_kazoo_log,
                handler=handler,
                use_ssl=handler is not None,
                auth_data=[self._credential.auth] if self._credential is not None else None,
            )
        except ValueError as error:
            raise CoordinationUnavailable(
                f"cannot understand ZooKeeper address {self.hosts!r}: write HOST:PORT[,HOST:PORT…]"
            ) from error
        self._client.add_listener(self._post_state)
        self._client.start_async()
        try:
            await self._first_connection(handler)
        except BaseException:
            await self.close()
            raise

    async def _first_connection(self, handler: TlsHandler | None) -> None:
        """Wait for it, and tell every few seconds what for."""
        clock = asyncio.get_running_loop().time
        deadline = self._connect_timeout_s + (now := clock())
        while not self._changed.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(TELL_S, deadline - now))
                return
            advice = "start it, or correct --zookeeper"
            if handler is None:
                advice += "; or does it demand TLS? give --zookeeper-certs"
            elif fault := handler.fault or await asyncio.to_thread(handler.ending):
                advice = fault
            if (now := clock()) >= deadline:
                raise CoordinationUnavailable(
                    f"no ZooKeeper answers at {self.hosts} within {self._connect_timeout_s:g} s: {advice}"
                )
            _log.warning("waiting: no ZooKeeper answers at %s yet: %s", self.hosts, advice)

    async def close(self) -> None:
        """End the session: its ephemeral nodes vanish at once if the server is there to hear it."""
        self._stopping = True
        self.connected = False
        if self._client is None:
            return
        client, self._client = self._client, None
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.to_thread(_stop, client)
        except TimeoutError:
            _log.warning(
                "the session with ZooKeeper at %s did not end within %g s; the server will let it expire",
                self.hosts,
                STOP_TIMEOUT_S,
            )

    def new_nodes(self, acl: list[ACL] | None) -> None:
        """What is made from now on has that access list; None: everybody may do everything with it."""
        if self._client is not None:
            self._client.default_acl = acl

    @property
    def session_id(self) -> int:
        """Of the present session; 0 while there is none."""
        identity = None if self._client is None else self._client.client_id
        return 0 if identity is None else int(identity[0])

    def deadline(self, at_least_s: float = 0.0) -> float:
        """For a question asked now, in the loop's time."""
        return asyncio.get_running_loop().time() + max(self.request_timeout_s, at_least_s)

    # -------------------------------------------------------------- questions

    async def ask(self, question: Callable[[KazooClient], Any], deadline: float) -> Any:
        """One answer. Raises `AnswerLost` past the deadline or when the connection drops, `Denied` where the credential
        is not the right one, and kazoo's definite errors (NoNode, BadVersion, NodeExists) as they are. Questions asked
        without awaiting in between reach the server in that order."""
        client, loop = self._client, self._loop
        if client is None or loop is None:
            raise Denied("the session is closed")
        future: asyncio.Future[Any] = loop.create_future()
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
                self._send(question, client, loop, future)
                with COORDINATION.measuring():
                    return await future
        except TimeoutError as error:
            raise AnswerLost(self.silent()) from error
        except NoAuthError as error:
            raise self.denied() from error
        except _LOST as error:
            raise AnswerLost(
                f"the connection to ZooKeeper at {self.hosts} was lost ({type(error).__name__})"
            ) from error

    def silent(self) -> str:
        """What is told of who does not answer."""
        return f"no answer from ZooKeeper at {self.hosts} in time"

    def denied(self) -> Denied:
        """What is told of a node that is closed to this session's credential."""
        if self._credential is None:
            return Denied(
                f"ZooKeeper at {self.hosts} lets only the cluster's brokers read and write its nodes: give "
                "--zookeeper-auth FILE, the file that the brokers have"
            )
        return Denied(
            f"ZooKeeper at {self.hosts} refuses the credential of user {self._credential.user!r} "
            f"({self._credential.path}): the cluster's nodes belong to another one. Give the file that the other "
            "brokers have"
        )

    async def ask_again(self, question: Callable[[KazooClient], Any], deadline: float) -> Any:
        """For questions that may be asked twice: goes on until the deadline, then raises `CoordinationUnavailable`."""
        while True:
            try:
                return await self.ask(question, deadline)
            except AnswerLost as error:
                await self.pause_or_give_up(deadline, error)

    async def ask_synced(self, question: Callable[[KazooClient], Any], deadline: float) -> Any:
        """As `ask_again`, with an answer that is not older than this call. A sync goes ahead of the question without
        being waited for: what comes over one connection is answered in that order."""
        return await self.ask_again(lambda client: _AfterSync(client.sync_async("/"), question(client)), deadline)

    async def pause_or_give_up(self, deadline: float, error: AnswerLost) -> None:
        """Before asking again. Raises `CoordinationUnavailable` if there is no time left for that, or no use in it."""
        if isinstance(error, Denied):
            raise CoordinationUnavailable(str(error)) from error
        if self._stopping or asyncio.get_running_loop().time() + ASK_AGAIN_S >= deadline:
            raise CoordinationUnavailable(f"{error}: {LOOK}") from error
        await asyncio.sleep(ASK_AGAIN_S)

    def _send(
        self,
        question: Callable[[KazooClient], Any],
        client: KazooClient,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
    ) -> None:
        # The slot belongs to kazoo's copy of the question: a caller that gave up does not free it, kazoo's answer does.
        answered = False

        def settle(value: Any, error: BaseException | None) -> None:
            nonlocal answered
            if answered:  # kazoo can answer twice when a request races with a closing connection
                return
            answered = True
            self._slots.release()
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def post(result: Any) -> None:
            _post(loop, settle, result.value, result.exception)

        try:
            pending = question(client)
        except BaseException:
            self._slots.release()
            raise
        pending.rawlink(post)

    async def commit(self, build: Callable[[TransactionRequest], None], deadline: float) -> list[Any]:
        """A transaction, all or nothing: what each operation gives, or why it failed. Raises as `ask`."""

        def question(client: KazooClient) -> Any:
            transaction = client.transaction()
            build(transaction)
            return transaction.commit_async()

        return list(await self.ask(question, deadline))

    # -------------------------------------------------------------- from kazoo's threads

    def watch(self, callback: Callable[[], None]) -> Callable[[Any], None]:
        """A watch function for kazoo: `callback` runs on the loop when the node changes. Those of the same one are
        equal, so kazoo keeps one. It is gone when the connection is: read anew after CONNECTED."""
        assert self._loop is not None
        return _Watching(self._loop, callback)

    def _post_state(self, state: str) -> None:
        if self._loop is not None:
            _post(self._loop, self._on_state, state)

    def _on_state(self, state: str) -> None:
        if self._stopping:
            return
        self.connected = state == KazooState.CONNECTED
        if self._changed.is_set():
            self._listener(state)
        elif self.connected:
            self._changed.set()


def _post(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: Any) -> None:
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:  # the loop has closed: nobody is left to be told
        _log.debug("an answer from ZooKeeper came after the end")


def _stop(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except (KazooException, OSError) as error:
        _log.warning("the session with ZooKeeper did not end cleanly (%s); the server will let it expire", error)
