"""A broker process from start to end: opens the data directory, joins the cluster, serves until told to stop, leaves
cleanly.

Everything is made here, once, and handed to those who need it. What is made is undone in the reverse order, however the
end comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import signal
import socket
from collections.abc import Callable, Collection, Iterator
from typing import Final

from mq_broker.broker.administration.consumed import Consumed
from mq_broker.broker.administration.features import Features
from mq_broker.broker.administration.moves import Moves
from mq_broker.broker.administration.preferred import Preferred
from mq_broker.broker.administration.purging import Purging
from mq_broker.broker.administration.recovery import TotalLoss
from mq_broker.broker.administration.retention import Retention, RetentionClock
from mq_broker.broker.administration.rights.acls import Acls
from mq_broker.broker.administration.rights.floor import FloorSettings
from mq_broker.broker.administration.rights.quotas import QuotaSettings
from mq_broker.broker.administration.rights.revoking import Revoking
from mq_broker.broker.administration.rights.tokens import TokenSettings
from mq_broker.broker.administration.topic_making import TopicMaking
from mq_broker.broker.administration.topics import Admin
from mq_broker.broker.config import BrokerConfig, Role, http_listener
from mq_broker.broker.data.fetch import Reading
from mq_broker.broker.data.flight import Flights
from mq_broker.broker.data.produce import Producing
from mq_broker.broker.data.scheduled import CLOCK_S, Scheduled
from mq_broker.broker.forwarding import Forwarding
from mq_broker.broker.groups.cursors import Groups
from mq_broker.broker.groups.sharing import EphemeralGroups, IdleMembers
from mq_broker.broker.groups.subscriptions import Delivery
from mq_broker.broker.host.checkpoints import Checkpoints, Scrub
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.host.windows import WindowBudget, WindowTurnover
from mq_broker.broker.judging import Judging
from mq_broker.broker.locks import Locks
from mq_broker.broker.metadata.brokers import Cluster, Hints, joined
from mq_broker.broker.metadata.topics import Topic, Topics
from mq_broker.broker.metrics.health import Readiness, Systemd
from mq_broker.broker.metrics.log_levels import LogLevels
from mq_broker.broker.metrics.observing import Observing, QueuesOf
from mq_broker.broker.ports import ForBrokers, Offer, Ports
from mq_broker.broker.proxy import serving as proxy
from mq_broker.broker.queues.asked import Asked
from mq_broker.broker.queues.beginning import Beginning
from mq_broker.broker.queues.declaring import Declaring
from mq_broker.broker.queues.describing import Describing
from mq_broker.broker.queues.group.row_reading import RowReading
from mq_broker.broker.queues.idle import Idle
from mq_broker.broker.queues.letters.dead_letters import DeadLetters
from mq_broker.broker.queues.letters.leftovers import Leftovers
from mq_broker.broker.queues.letters.outbox import Outbox
from mq_broker.broker.queues.letters.outputs import Outputs
from mq_broker.broker.queues.letters.staging import Staging
from mq_broker.broker.queues.policy.declared import Declared
from mq_broker.broker.queues.policy.length import room
from mq_broker.broker.queues.sessions import Sessions
from mq_broker.broker.queues.stuck import Stuck
from mq_broker.broker.queues.sweeping import Sweeping
from mq_broker.broker.queues.working import Working
from mq_broker.broker.runtime.arrivals import Arrivals
from mq_broker.broker.runtime.memory import Held, memory_high_by_default
from mq_broker.broker.runtime.periodic import Periodic, Sweep
from mq_broker.broker.transactions.aborting import Aborting
from mq_broker.broker.transactions.coordinator import Transactions
from mq_broker.broker.transactions.giving import Giving
from mq_broker.broker.transactions.upkeep import Upkeep
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.messages import Room
from mq_broker.measured import OF_TOPICS, LogCounter
from mq_broker.rpc import service as rpc_service
from mq_broker.rpc.call import Conversation
from mq_broker.rpc.calls import Calls, served_to_brokers
from mq_broker.rpc.flight import flight_served
from mq_broker.rpc.peer_proof import SECRET_BYTES, PeerProof, Refusals
from mq_broker.rpc.wire.entering import ForwardedDoor, TokenDoor
from mq_broker.rpc.wire.links import BEAT_S, Links
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.opening.directory import DataDirectory
from mq_protocol.errors import CoordinationUnavailable, OutcomeUnknown, StorageFailed
from mq_protocol.limits import MESSAGE_OVERHEAD_BYTES
from mq_protocol.methods import BROKER, PEER

log = logging.getLogger(__name__)

OPENED_TIMEOUT_S: Final = 30.0
SERVER_GRACE_S: Final = 0.2
FLUSH_TIMEOUT_S: Final = 1.0

Ready = Callable[[str], None]
"""Called with the address that others dial, once the broker serves."""


async def serve(config: BrokerConfig, *, ready: Ready | None = None, stop: asyncio.Event | None = None) -> None:
    """Run one broker until SIGTERM or SIGINT, or until `stop` is set; then hand over what it leads and leave.

    Raises the `TritonMQError` that kept it from starting (`InvalidSetting`, `CoordinationUnavailable`, `StorageFailed`,
    …), or the error that made it stop by itself. Cancelled, it ends without handing over.
    """
    if stop is None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        try:
            await (proxy.run if config.role is Role.PROXY else _run)(config, ready, stop, tasks)
        except Exception as error:  # noqa: BLE001 - raised below: a TaskGroup would wrap it, and callers look for its class
            failure = error
    if failure is not None:
        raise failure


async def _run(config: BrokerConfig, ready: Ready | None, stop: asyncio.Event, tasks: asyncio.TaskGroup) -> None:
    async with contextlib.AsyncExitStack() as undo:
        http = undo.enter_context(http_listener(config.http)) if config.http else None
        keys = await asyncio.to_thread(Keyring, config.encrypt) if config.encrypt else None
        directory = await asyncio.to_thread(DataDirectory.open, config.data_dir, config.broker, None, keys)
        undo.callback(directory.close)
        coordination = config.make_coordination()
        hints = Hints()
        if not await joined(coordination, hints, stop):
            return
        undo.push_async_callback(coordination.stop)
        cluster_id, stamp = await coordination.cluster_id(), await coordination.known_stamp(config.broker)
        await asyncio.to_thread(directory.join_cluster, cluster_id, stamp)
        incarnation = await coordination.begin_life(config.broker, directory.incarnation)
        directory.incarnation = incarnation
        log.info(
            "broker %d, start %d of this data directory, cluster %s, data in %s",
            config.broker,
            incarnation,
            directory.cluster_id,
            directory.path,
        )
        writer = Writer()
        writer.start()
        undo.push_async_callback(writer.stop)
        shell = Shell(config.broker, incarnation, coordination, directory, writer, tasks)
        broker = _Broker(config, shell, coordination, directory, await coordination.peer_secret())
        undo.push_async_callback(broker.close)
        hints.to = broker.cluster
        broker.serve_http(http, undo)
        stopping = shell.spawn(_wait(stop), "stop")
        ends: set[asyncio.Future[None]] = {stopping, shell.failure, writer.died}
        starting = asyncio.create_task(broker.start(), name="start")
        try:
            await asyncio.wait({starting, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                if ready is not None:
                    ready(broker.address)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            starting.cancel()  # told to stop before all was open: nothing of it is needed any more
            await asyncio.wait({starting})
        for ended in (shell.failure, writer.died):
            if ended.done():
                ended.result()
        log.info("stopping: handing over what is led")
        await broker.leave(config.stop_timeout_ms / 1000)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


LAST_STAMP_S: Final = 2.0


class Stamps:
    """Says in the coordination service how far the data directory has come, so that an older copy of it is known by
    that. What is kept there is never ahead of the directory (`storage/opening/directory.py`).

    Made from the registration on, which nobody else may have: another directory under this broker's id would make this
    one look old.
    """

    def __init__(self, directory: DataDirectory, coordination: CoordinationService) -> None:
        self._directory = directory
        self._coordination = coordination

    async def last(self) -> None:
        """Of a clean stop, once this broker acknowledges nothing more; best effort."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_STAMP_S):
                await self.look()

    async def look(self) -> None:
        """How far it has come now: a copy that was taken before is known to be older."""
        try:
            stamp = await asyncio.to_thread(self._directory.raise_stamp)
            await self._coordination.keep_stamp(self._directory.broker, stamp)
        except (StorageFailed, CoordinationUnavailable) as error:
            log.info("an older copy of this data directory is told from a later moment on: %s", error)


_OF_LINKS = "link"
"""The links between brokers serve it themselves."""


class Services:
    """What calls are answered by. Owns nothing but the parts. Has a method for each one in `mq_protocol/methods.py`:
    the one of that name in one of the parts.

    Raises `LookupError` if no part has it, or if two have.
    """

    def __init__(self, *parts: object) -> None:
        attributes = {method.attribute for service in (BROKER, PEER) for method in service.methods.values()}
        for attribute in sorted(attributes - {_OF_LINKS}):
            owners = [part for part in parts if callable(getattr(type(part), attribute, None))]
            if len(owners) != 1:
                names = [type(owner).__name__ for owner in owners] or "no part of the broker"
                raise LookupError(f"{attribute} is to be a method of one part of the broker: {names} has it")
            setattr(self, attribute, getattr(owners[0], attribute))


class _Broker:
    """Owns the parts of one running broker, and the order in which they begin and end. `secret` None: it stands alone,
    and has no ports for other brokers."""

    def __init__(
        self,
        config: BrokerConfig,
        shell: Shell,
        coordination: CoordinationService,
        directory: DataDirectory,
        secret: bytes | None,
    ) -> None:
        cluster_id, self._stamps = directory.cluster_id, Stamps(directory, coordination)
        self._dedup_memory_max, self._scrub_rate = config.dedup_memory_max, config.scrub_rate
        self._balance_leaders_ms = config.balance_leaders_ms
        self._ports = Ports(config, alone=secret is None)
        self.address = self._ports.tls_address or self._ports.address
        self._message_bytes_max = config.message_bytes_max
        self._shell = shell
        self._coordination = coordination
        refusals = Refusals()
        proof = PeerProof(config.broker, shell.incarnation, cluster_id, secret or secrets.token_bytes(SECRET_BYTES))
        self._links = shell.links = Links(proof, shell, shell.spawn, self._read_brokers, refusals, self._ports.link_tls)
        self._calls = Calls(proof, self._ports.dialling)
        self._topics = Topics(coordination, self._on_topics)
        me = self._ports.registration(shell.incarnation)
        self.cluster = Cluster(coordination, me, self._on_brokers, shell.session_lost, self._ports.peer_address_of)
        self._judging = Judging(config, coordination, self.cluster)
        naming = config.topic_name_max, config.auto_create
        quotas = self._judging.quotas
        self._admin = Admin(shell, self.cluster, self._topics, coordination, self._calls, *naming, quotas)
        self._moves = Moves(shell, self.cluster, self._topics, self._admin)
        self._total_loss = TotalLoss(shell, self.cluster, self._topics, coordination, self._calls)
        self._transactions = Transactions(shell, self.cluster, self._topics, self._admin, self._calls)
        held = self._held = Held(config.memory_high or memory_high_by_default(), config.connections_max)
        self._clock = RetentionClock()
        self._upkeep = Upkeep(shell, self._clock.now_us)
        self._scheduled = Scheduled(shell, self._topics, self._clock.now_us)
        self._producing = Producing(shell, self._topics, held, self._scheduled, self._transactions.owned, self._room)
        self._reading = Reading(shell, self._topics, held)
        delivery = self._delivery = Delivery(shell, self._topics, held, self._transactions.begun)
        services = Services(
            *self._topics_served(),
            *self._settings_served(config),
            *self._queue_groups(shell, held),
            self._moves,
            self._total_loss,
            self._producing,
            self._scheduled,
            self._reading,
            delivery,
            *self._telling(config, cluster_id),
            self._transactions,
            *self._dropping(shell),
            Aborting(shell, self.cluster, self._transactions),
            Giving(shell, self._transactions),
            Features(self.cluster, self._topics, coordination),
            Locks(coordination),
        )
        self._forwarding = Forwarding(self.cluster, proof, self._ports.dialling, held)
        self._offer(config, services, proof, refusals)

    def _offer(self, config: BrokerConfig, services: Services, proof: PeerProof, refusals: Refusals) -> None:
        """What each port serves."""
        gate, room = self._judging.gate, rpc_service.Room()
        clients = rpc_service.served(services, gate, room, self._forwarding)
        plain = config.certs is None or bool(config.also_plaintext)
        brokers = ForBrokers(
            self._links.accept,
            served_to_brokers(services, self._links, proof, refusals),
            ForwardedDoor(proof, self._links.is_former, refusals, plain=plain),
        )
        tokens = TokenDoor(self._judging.authenticators(), self._judging.audit)
        alone = not self._ports.peer_address
        self._ports.serve(Offer(clients, tokens, Arrivals(self._held), self._flight(room), None if alone else brokers))

    def _flight(self, room: rpc_service.Room) -> dict[str, Conversation]:
        """What is served at the port for Arrow Flight."""
        flights = Flights(self._shell, self._topics, self.cluster, self._admin, self._reading, self._held)
        return flight_served(flights, self._judging.gate, room)

    def _settings_served(
        self, config: BrokerConfig
    ) -> tuple[Acls, QuotaSettings, Revoking, TokenSettings, FloorSettings]:
        """The parts that show and change who may do what, and how much of it."""
        judging = self._judging
        kept = self._coordination, judging.authority, judging.acls, judging.audit
        settings = FloorSettings(self._coordination, judging.floor, self._topics, judging.audit)
        revoking = Revoking(*kept, judging.gate.seen, (config.broker, lambda: self._ports.serial))
        return judging.acls, judging.quota_settings, revoking, TokenSettings(*kept), settings

    def _telling(self, config: BrokerConfig, cluster_id: str) -> tuple[Groups, Observing, LogLevels]:
        """The parts that say who reads, and how this broker does."""
        self._log_levels, self._systemd = LogLevels(), Systemd()
        shell, shares = self._shell, self._delivery.shares
        asked = shares.members_of, shares.counts, shares.end, shares.has_strangers
        groups = Groups(shell, self._topics, *asked, self._transactions.begun)
        self._observing = Observing(
            shell,
            self.cluster,
            config.data_dir,
            (cluster_id, config.rack),
            shares.members_of,
            lambda: self._coordination.condition,
            self._gauges,
            QueuesOf(self._delivery_limit, self._stuck.alarms),
            self._topics.all,
            groups.labels.of,
        )
        self._readiness = Readiness(shell, lambda: self._observing.state, config.ready_in_sync_timeout_s)
        self._admin.why_not_ready = self._readiness.why_not
        return groups, self._observing, self._log_levels

    def _gauges(self) -> dict[str, float]:
        """What is so now, by the names of metrics."""
        unpublished, age_s = self._transactions.unpublished()
        return {**self._shell.gauges(), **self._held.gauges(), "sink_unpublished": unpublished,
                "sink_unpublished_age_seconds": age_s, "broker_ready": not self._readiness.why_not(),
                "retention_held_up": self._upkeep.holding_up}  # fmt: skip

    def _delivery_limit(self, partition: Partition, group: str) -> int | None:
        queue = self._declared.find(partition, group)
        return queue.settings.delivery_limit if queue is not None else None

    def _topics_served(self) -> tuple[Admin, TopicMaking]:
        made = self._shell, self.cluster, self._topics, self._coordination, self._calls
        return self._admin, TopicMaking(self._admin, *made)

    def _dropping(self, shell: Shell) -> tuple[Purging, Consumed]:
        """The parts that say which records go, as far as they serve methods."""
        self._consumed = Consumed(shell, self._topics, self._transactions.ask_leader)
        return Purging(shell, self._topics), self._consumed

    def _queue_groups(
        self, shell: Shell, held: Held
    ) -> tuple[Declaring, Sessions, Describing, Sweeping, Staging, Leftovers, Idle]:
        """Their parts; what is returned serves methods."""
        self._declared = Declared(shell)
        outbox = Outbox(shell, self._topics, self._transactions)
        staging = Staging(shell, self._topics)
        letters = DeadLetters(shell, self._topics, self._admin, self._transactions, staging)
        outbox.missing = letters.stage_again
        self._leftovers = Leftovers(shell, self._topics, self._transactions, letters)
        self._rows = RowReading(shell, self._topics)
        self._working = Working(shell, self._declared, self._clock.now_us, outbox.look, letters.look, self._rows.look)
        self._stuck = Stuck(shell, self._declared, self._working)
        self._beginning = Beginning(shell, self._topics, self._declared, self._working)
        self._idle = Idle(shell, self._topics, self._declared, self._working, self._transactions)
        asked = Asked(shell, self._topics, self._declared)
        return (
            Declaring(self._topics, self._declared, self._transactions.begun),
            Sessions(asked, self._working, Outputs(self._topics, self._transactions), held),
            Describing(
                shell,
                self._topics,
                self._declared,
                lambda *place: (
                    letters.alarm(*place)
                    or outbox.alarm(*place)
                    or self._rows.alarm(*place)
                    or self._stuck.alarm(*place)
                ),
                self._working.blocked_by,
            ),
            Sweeping(shell, self._topics, self._declared, self._working),
            staging,
            self._leftovers,
            self._idle,
        )

    def _room(self, partition: Partition) -> Room | None:
        """How far batches may be appended."""
        return room(self._declared, self._working.kept, partition)

    def serve_http(self, listening: socket.socket | None, undo: contextlib.AsyncExitStack) -> None:
        """From now on, if it is to. What serves it is imported only then."""
        if listening is None:
            return
        from mq_broker.broker.metrics.http import HttpServer, Pages

        certificates = self._ports.certificates
        # In plain text it is one machine's, or --insecure was said
        gate = None if certificates is None else self._judging.gate
        pages = Pages(self._observing, self._readiness.why_not, gate)
        server = HttpServer(listening, pages, None if certificates is None else certificates.server_context)
        server.start()
        undo.push_async_callback(server.stop)
        counter = LogCounter()
        logging.getLogger().addHandler(counter)
        undo.callback(logging.getLogger().removeHandler, counter)
        host, port = listening.getsockname()[:2]
        scheme = "http" if certificates is None else "https"
        log.info("metrics at %s://%s:%d/metrics", scheme, f"[{host}]" if ":" in host else host, port)

    def _read_brokers(self) -> None:
        self.cluster.read_again()

    def _on_topics(self, topics: dict[str, Topic], changed: Collection[str] | None) -> None:
        self._shell.follow_topics(topics, changed)
        if changed is None or not topics.keys() >= set(changed):
            self._admin.forget(topics)
            names = {topic.spec.name for topic in topics.values()}
            for counts in OF_TOPICS:
                counts.keep(names)
            self._declared.keep(topics)
            self._consumed.keep(topics)
        self._moves.hint.set()
        self._beginning.topics_changed(changed)
        self._working.settings_changed(changed)

    def _on_brokers(self) -> None:
        self._shell.level = self.cluster.level
        self._shell.brokers_seen(self.cluster.live)
        self._links.know({broker: self._ports.link_address_of(each) for broker, each in self.cluster.brokers.items()})

    async def start(self) -> None:
        """Serve. Returns once this broker is registered and what is assigned to it is open."""
        await self._judging.begin(self.address, self._shell.spawn)
        await self._ports.start()
        await self._topics.refresh()
        self._look_at_batches()
        await self.cluster.join()
        spawn = self._shell.spawn
        spawn(self._shell.ticking.run(), "ticks")
        for each in self._periodic():
            spawn(each.run(), each.name)
        await self._shell.wait_until_open(OPENED_TIMEOUT_S)
        self._observing.state = "serving"
        spawn(Periodic("readiness", 0.5, self._readiness.look, at_once=True).run(), "readiness")
        systemd = Periodic("systemd", math.inf, lambda: self._systemd.look(self._readiness), at_once=True)
        spawn(systemd.run(), "systemd")
        log.info(
            "broker %d serves at %s, gRPC at %s, Flight at %s",
            self._shell.broker,
            self.address,
            self._ports.grpc_address or "no port",
            self._ports.flight_address or "no port",
        )

    def _periodic(self) -> Iterator[Periodic]:
        """What is done again and again, and in how many seconds; or on a hint, or when it says itself. What looks at
        few of the partitions is swept."""
        shell, shares, partitions = self._shell, self._delivery.shares, self._shell.partitions
        moves, beginning, scheduled = self._moves, self._beginning, self._scheduled
        yield from self._ports.periodic()
        yield self.cluster.following()
        yield self._topics.following(self.cluster.topics_changed)
        yield Periodic("carry on moves", math.inf, moves.look, at_once=True, hint=moves.hint)
        yield Periodic("beginning of queue groups", math.inf, beginning.look, hint=beginning.hint)
        yield Periodic("scheduled batches", CLOCK_S, scheduled.publish_due, hint=scheduled.hint)
        yield Periodic("stamps of the data directory", 600.0, self._stamps.look, at_once=True)
        yield Periodic("listen for beats", BEAT_S, shell.end_silent_links)
        yield Periodic("reap", 20.0, self._transactions.reap)
        yield Periodic("watch for partitions without a log", 0.5, self._total_loss.look)
        yield Periodic("retention", 2.0, Retention(shell, self._consumed, self._clock).look)
        yield Periodic("members that do nothing", 1.0, IdleMembers(shell, shares).look)
        yield Sweep("ephemeral groups", 1.0, partitions, EphemeralGroups(shell, shares))
        yield Sweep("idle queue groups", 1.0, partitions, self._idle)
        yield Sweep("leftovers of queue groups", 15.0, partitions, self._leftovers)
        yield Sweep("queue groups that stand still", 10.0, partitions, self._stuck)
        yield Sweep("scheduled batches of former leaders", 2.0, partitions, scheduled)
        yield Sweep("upkeep of transactions", 10.0, partitions, self._upkeep)
        yield Sweep("budget of UUID windows", 10.0, partitions, WindowBudget(self._dedup_memory_max))
        yield Sweep("turnover of UUID windows", 10.0, partitions, WindowTurnover(self._producing.fillers))
        yield Sweep("checkpoints", 5.0, partitions, Checkpoints(shell.failure.done))
        if self._scrub_rate:
            yield Sweep("scrub", 5.0, partitions, Scrub(self._scrub_rate))
        if after_ms := self._balance_leaders_ms:
            preferred = Preferred(shell, self.cluster, after_ms)
            yield Sweep("give leaderships back", min(2.0, after_ms / 2_000), partitions, preferred)

    def _look_at_batches(self) -> None:
        """A topic may have been made when this broker took larger messages."""
        for topic in self._topics.all():
            needed = topic.settings.batch_bytes_max + MESSAGE_OVERHEAD_BYTES
            if needed > self._message_bytes_max:
                log.error(
                    "topic %s has batches of up to %d bytes, and this broker takes messages of %d: producers of larger "
                    "ones are disconnected. Start it with --message-bytes-max %d, or lower the topic's batch_bytes_max",
                    topic.spec.name,
                    topic.settings.batch_bytes_max,
                    self._message_bytes_max,
                    needed,
                )

    async def leave(self, seconds: float) -> None:
        """Hand over what is led, while everything still runs; then the session, so that nobody waits for this
        broker."""
        self._observing.state = "draining"
        self._systemd.tell("STOPPING=1")
        await self._shell.hand_over(seconds)
        await self._links.flush(FLUSH_TIMEOUT_S)
        await self._stamps.last()

    async def close(self) -> None:
        """End everything that runs. Does not wait for successors: `leave` does, before."""
        self._shell.stop()
        await self._coordination.stop()
        await self._links.close()
        await self._ports.stop(SERVER_GRACE_S)
        await self._shell.close(
            OutcomeUnknown(f"broker {self._shell.broker} has stopped: ask again with the same UUID")
        )
        await self._forwarding.close()
        await self._calls.close()
        self._log_levels.close()
        self._producing.close()
        self._reading.close()
        self._rows.close()
        if self._judging.audit is not None:
            await asyncio.to_thread(self._judging.audit.stop)
