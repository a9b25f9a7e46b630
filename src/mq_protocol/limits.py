"""Every bound in one place, its unit last in its name, with the reason for the number."""

from __future__ import annotations

from typing import Final

# -- names
NAME_BYTES_MAX: Final = 255
"""A new topic, group, member, column or rack, in UTF-8: a file name's bound on every file system that brokers run
on."""

NAME_CHARACTERS_MAX: Final = 255
"""A topic or group that exists: names were once counted in characters, and stay usable."""

LABEL_CHARACTERS_MAX: Final = 100
"""Of what people call a group."""

PARTITIONS_PER_TOPIC_MAX: Final = 10_000
REPLICAS_MAX: Final = 9
MEMBERS_MAX: Final = 64
"""Brokers that hold a partition, or are named in sync, while it moves: of every place that it was sent to on the
way."""

TOPIC_DOCUMENT_BYTES_MAX: Final = 512 << 10
"""A topic as the coordination service keeps it. ZooKeeper takes 1 MiB in one request, with what is written beside it,
and ends the session of who sends more: that of a broker, with all that it leads."""


ID_BYTES_MAX: Final = 1_024
"""A query id, a sink or a run id, in UTF-8: they stand in every staged batch and decision, and coordinators remember
them."""

QUOTED_CHARACTERS_MAX: Final = 200
"""Text from outside in a log or an error: enough to know it by."""

NEAREST_WORD_CHARACTERS_MAX: Final = 64
"""For a longer word that is not known no near one is sought, nor is a longer one proposed."""

NEAREST_CANDIDATES_MAX: Final = 1_000
"""Nor is one sought among more."""

NEAREST_RATED_MAX: Final = 16
"""How many of those that look alike are rated in full: up to a millisecond each."""

LISTED_TRANSACTIONS_MAX: Final = 5_000
"""Lines of one kind in a broker's answer about transactions: a few megabytes, with the longest names."""

MICRO_BATCH_ID_MAX: Final = 1 << 62
"""Micro-batch ids of Spark count from 0, and `txnVersion` is an application's own number: a time in nanoseconds is
below it too."""

PRIORITY_MAX: Final = 31
PRIORITY_USUAL: Final = 4
"""Of a record, from 0 on: which one queue groups lend first."""

TTL_MS_MAX: Final = 365 * 86_400_000
"""For how long after it was published a record may be lent by queue groups, if it is not for ever."""

SCHEDULED_MAX: Final = 100_000
"""Scheduled batches that wait in a partition, some 400 bytes of memory each on every replica (`scheduled_max`)."""

SCHEDULED_CEILING: Final = 1_000_000

DELAY_MS_MAX: Final = 365 * 86_400_000
"""How far ahead a batch may be scheduled."""

GROUPS_PER_PARTITION_MAX: Final = 10_000
"""Groups whose cursors a partition keeps, about half a kilobyte each on every replica: those of queries that ended
stay."""

QUEUE_GROUPS_PER_PARTITION_MAX: Final = 100
"""Queue groups of a partition. The state of one may be 20 MB on every replica."""

GROUP_MEMBERS_MAX: Final = 1_000
"""Members of a group at one partition. One of them has it; the others wait."""

MEMBER_KEY_BYTES: Final = 16
MEMBER_KEY_BYTES_MAX: Final = 64
"""How long the secret of a group's member is, and may be at most."""

LEASES_HELD_MAX: Final = 10_000
"""Leases of one partition that a member may name in a request: five times as many as it is lent."""

SETTLES_MAX: Final = 8_000
"""Outcomes in one request, as many as it may have ranges."""

WORK_SESSIONS_AT_ONCE_MAX: Final = 1_000
"""Sessions of members of queue groups that one message of a stream names."""

WORK_SESSIONS_MAX: Final = 1_000
"""The same of one partition: as many as may wait there by requests of their own."""

WORK_SESSIONS_PER_BROKER_MAX: Final = 20_000

CREDIT_RECORDS_MAX: Final = 1 << 31
CREDIT_BYTES_MAX: Final = 1 << 40
"""What a member of a queue group may allow a leader to lend beside what it was lent: more is a mistake."""

OUTPUT_PARTITIONS_MAX: Final = 64
OUTPUT_BATCHES_MAX: Final = 8_192
"""Of one ack with outputs: partitions that it names, and batches in all. They stand in one entry."""

SETTLE_OUTPUTS_MAX: Final = 16 * OUTPUT_PARTITIONS_MAX
"""Partitions that the outputs of all acks in one request name together."""

LOCKS_MAX: Final = 1_000
"""Places in queues for locks that one broker keeps for clients, held ones too. A place is a node in ZooKeeper."""

LOCK_WAITERS_MAX: Final = 100
"""Of them for one lock: each lists the places of its queue when it comes, and when the one before it goes."""

LOCK_REQUEST_BYTES_MAX: Final = 4 << 10
"""A lock's name and a number."""

MANIFEST_BYTES_MAX: Final = 16 << 20
"""A decision is one entry, and so one message between brokers: this names 900,000 staged batches."""

# -- numbers of the cluster, in ZooKeeper and on the wire
BROKER_MAX: Final = (1 << 31) - 1
"""A broker's id: an int32 on the wire."""

INCARNATION_MAX: Final = (1 << 31) - 1
"""A broker's life: ZooKeeper counts it as the version of a node."""

STAMP_MAX: Final = 1 << 53
"""Of a data directory."""

EPOCH_MAX: Final = (1 << 31) - 1
"""A leader epoch. Frames have 32 bits for it; an honest cluster takes one for each change of a leader."""

RECOVERY_MAX: Final = (1 << 31) - 1
OFFSET_MAX: Final = 1 << 62
"""An offset that a document may name: what is added to it still fits 64 bits."""

# -- batches
RECORD_BYTES_MAX: Final = 1 << 20
"""One record, by default (`record_bytes_max`): a queue of messages, not of files."""

BATCH_BYTES_MAX: Final = 4 << 20
"""A stored batch, by default (`batch_bytes_max`). Big enough that Arrow's fixed cost per batch is lost in it."""

BATCH_BYTES_CEILING: Final = 64 << 20
"""What `batch_bytes_max` can be raised to."""

BATCH_BYTES_FLOOR: Final = 16 << 10
"""What `batch_bytes_max` can be lowered to: Arrow's own frame around a record must stay small beside it."""

BATCH_OVERHEAD_BYTES: Final = 4 << 10
"""Arrow's frame around a batch of one record, at most: `record_bytes_max` stays this far below `batch_bytes_max`."""

BATCH_DECODED_BYTES_MAX: Final = 64 << 20
"""A batch once it is decompressed, by default (`batch_decoded_bytes_max`): 8 kB of zstd can hold 268 MB."""

BATCH_DECODED_BYTES_CEILING: Final = 256 << 20
"""What `batch_decoded_bytes_max` can be raised to."""

BATCH_RECORDS_MAX: Final = 1_000_000

RECORD_UUIDS_MAX: Final = 4_000
"""Records of a batch whose records have UUIDs of their own. Each is looked up, and remembered, by itself, on the
broker's loop: so many take some 20 ms, and 64 kB of the message's header."""

SCHEMA_FIELDS_MAX: Final = 4_096
"""Fields of a schema, nested ones counted: the metadata of every batch has a line for each."""

SCHEMA_DEPTH_MAX: Final = 32
"""Types within types; Arrow itself reads 64."""

DEDUP_UUIDS_MAX: Final = 100_000
"""Batches back that a retry is recognised, a partition, by default (`dedup_uuids_max`): 100 s of 1,000 batches a
second."""

DEDUP_UUIDS_FLOOR: Final = 100
DEDUP_UUIDS_CEILING: Final = 10_000_000

SCRUB_RATE: Final = 32 << 20
"""Bytes a second at which what a start did not read is verified: 20 GB in ten minutes. A disk hardly notices."""

DEDUP_MEMORY_MAX: Final = 1 << 30
"""What the UUIDs of all partitions of a broker may take before it says so: some 230 full windows of the default
size."""

DEDUP_MS_FLOOR: Final = 60_000
"""What `dedup_ms` can be lowered to: a producer goes on asking for some time after a first answer was lost."""

RETENTION_MS_FLOOR: Final = 1_000
"""Below this a batch could be dropped before a reader that is on time has seen it."""

MEMBER_IDLE_MS_FLOOR: Final = 1_000
"""Below this a member could lose a partition while its process is only busy."""

OFFSETS_OF_A_LIFE: Final = 1 << 40
"""When the logs of a partition are lost and nobody can say how far they went, offsets go on at the next multiple of
this: more than any log has given, and few enough for eight million such losses. So two offsets tell whether one
happened between them."""


def next_life(offset: int) -> int:
    """Where offsets go on after a loss, if `offset` is the highest that is known to have been given, or the one after
    it."""
    return (offset // OFFSETS_OF_A_LIFE + 1) * OFFSETS_OF_A_LIFE


EPOCHS_AHEAD_MAX: Final = 1 << 20
"""How far a message's leader epoch may be above that of the state node as last read. A broker that is further behind
reads the node; a message that is still further ahead is of no leader."""

# -- wire
MESSAGE_OVERHEAD_BYTES: Final = 1 << 20
"""What a message may have beside a batch."""

MESSAGE_BYTES_MAX: Final = BATCH_BYTES_CEILING + MESSAGE_OVERHEAD_BYTES
"""Of a message between brokers, and from a broker to a client: the largest batch and its header. What a
broker takes from clients can be raised to this."""

CLIENT_MESSAGE_BYTES_MAX: Final = 17 << 20
"""What a broker takes in one message from a client, by default (`--message-bytes-max`): a decision of the sink, or a
batch of 16 MiB."""

CONNECTIONS_MAX: Final = 2_000
"""From clients, to one broker, by default (`--connections-max`): a process has a few, and one for each subscription."""

STREAMS_PER_CONNECTION_MAX: Final = 1_000
"""Requests and streams at once on one connection; more wait in the client. A hundred is gRPC's advice, but all
consumers of a process share a connection, and a stream that waits there says nothing. An idle stream takes 30 kB of a
broker."""

STREAMS_MAX: Final = 20_000
"""Streams of all clients at one broker: 600 MB while they are idle."""

HOLD_MAX: Final = 64 << 20
"""Requests that a proxy holds while their partitions have no leader. Producers hold more by themselves."""

MEMORY_HIGH_FLOOR: Final = 128 << 20
"""What `--memory-high` can be lowered to: one stream may have half of it unanswered."""

HANDSHAKE_TIMEOUT_MS: Final = 10_000
"""Who has connected and not said so much as hello by then is disconnected."""

CONNECTION_IDLE_MS: Final = 600_000
"""A connection without a request for so long is closed; clients make another when they need one."""

CONNECTION_AGE_MS: Final = 3_600_000
"""How old a connection of a client over TLS becomes; gRPC adds or takes up to a tenth."""

CONNECTION_AGE_GRACE_MS: Final = 300_000
"""What is under way on it may take so much longer."""

CALL_METADATA_BYTES_MAX: Final = 8 << 10
"""Headers of one call."""

ERROR_BYTES_MAX: Final = 4 << 10
"""An error's text in UTF-8. It travels in HTTP/2 headers, in base64 there, and gRPC takes 8 KiB of headers for
certain."""

ERROR_STATUS_BYTES_MAX: Final = 1 << 10
"""The same text in gRPC's status, for tools that know only gRPC. There each byte beyond ASCII takes three."""

REQUEST_BYTES_MAX: Final = 1 << 20
"""A request with one answer: what a client means to ask fits many times over. A decision may have
`MANIFEST_BYTES_MAX`."""

PLACES_REQUEST_BYTES_MAX: Final = 4 << 20
"""A request that names partitions of any topics: `REQUEST_PLACES_MAX` of them, with the longest names."""

REQUEST_TOPICS_MAX: Final = 1_000
"""Topics named in one question about metadata: a client names those that it uses."""

API_TOKENS_MAX: Final = 2
"""Of one user, valid at once: a new one is brought to where it is needed before the former is revoked."""

API_TOKEN_VALID_S: Final = 90 * 86_400
API_TOKEN_VALID_S_MAX: Final = 3_650 * 86_400

REQUEST_RULES_MAX: Final = 1_000
"""Rules about rights in one request."""

REQUEST_PLACES_MAX: Final = 10_000
"""Partitions named in one request: all of the largest topic. Each costs a broker about a kilobyte until it is
answered."""

REQUEST_SETTINGS_MAX: Final = 100
"""Settings given to a topic at once; there are about ten."""

MANIFEST_LINES_MAX: Final = 100_000
"""Partitions that one decision writes to, of all topics together."""

DISCARD_UUIDS_MAX: Final = 50_000
"""Staged batches that one request discards: their UUIDs fit `REQUEST_BYTES_MAX`."""

PRODUCE_HEADER_BYTES_MAX: Final = 64 << 10
"""What is said about a batch beside its payload: names and ids of at most a few kilobytes."""

ANSWER_BYTES_MAX: Final = 4 << 20
"""Where an answer that lists things ends and says that there is more. Encoding this much holds up a broker for about 30
ms."""

YIELD_EVERY: Final = 500
"""After so many elements of a list that somebody else has made, other work gets its turn."""

FETCH_CHUNK_BYTES: Final = 1 << 20
"""grpcio moves about 1.8 GB/s at 1 MiB a message; larger gains nothing."""

READ_BATCHES_MAX: Final = 1_000
"""Stored batches in one answer. Each takes the loop some 15 microseconds, and a few megabytes may be ten thousand of
them."""

FILTER_CHARACTERS_MAX: Final = 4_096
"""A filter travels with every fetch: a page of text says what a person can mean."""

FILTER_NUMBER_CHARACTERS_MAX: Final = 400
"""One number in a filter. The longest double that is written out in full has 309 digits before its point."""

FILTER_DEPTH_MAX: Final = 32
"""Parentheses and NOTs within one another: what Python's stack bears many times over."""

FILTERS_AT_ONCE_MAX: Final = 2
"""Fetches whose rows a broker filters at the same time, in threads: more would take the processors from its own
work."""

FLIGHT_REQUEST_BYTES_MAX: Final = 64 << 10
"""One message to a Flight port: a ticket with the names of all columns of a wide topic. Whoever reads says no more."""

FLIGHT_GATHER_BYTES: Final = 256 << 10
"""Stored batches below this are sent together by Flight: each message takes gRPC some 100 microseconds, whatever is in
it."""

PRODUCE_IN_FLIGHT_BYTES_MAX: Final = 64 << 20
"""What one Produce stream may have unanswered; more waits in TCP, not in the broker's memory."""

LINK_MESSAGE_BYTES: Final = 2 << 20
"""Where a message between brokers stops gathering: enough for throughput, little enough not to hold up what comes
behind it."""

LINK_HEADER_BYTES_MAX: Final = 8 << 20
"""Of one message between brokers, beside its payload: what the largest one has for each of its entries, and a part of
a snapshot."""

LINK_BUFFER_BYTES_MAX: Final = 64 << 20
"""What may wait for a slow peer; past it entries are dropped, and the core sends them again."""

SNAPSHOT_PART_BYTES: Final = 1 << 20
"""How a partition's state travels to a follower that begins anew: little enough not to hold up entries of other
partitions."""

SNAPSHOT_BYTES_MAX: Final = 64 << 20
"""What a link may have sent of a snapshot that has not arrived whole, besides its UUIDs: some hundred thousand
transaction keys."""

SNAPSHOT_UUID_BYTES: Final = 40
"""What a snapshot takes for each UUID that the partition remembers, at most: 16 bytes, and three steps of some bytes
each."""

# -- time
BALANCE_LEADERS_MS: Final = 60_000
"""A partition whose first replica has been in sync for so long is led by it again."""

SESSION_TIMEOUT_MS: Final = 4_000
"""ZooKeeper session. A dead leader is replaced after this plus at most a second."""

REQUEST_TIMEOUT_MS: Final = 30_000
CONNECT_TIMEOUT_MS: Final = 10_000

GROUP_HANDOVER_MS: Final = 3_000
"""How long a group's member may take to settle what it holds before the partition goes to another, which is then given
it again."""

LOCK_SILENCE_MS_MAX: Final = 5_000
"""A client that has heard nothing of its lock for so long takes it for lost. Brokers end a silent connection after ten
seconds at the earliest, so the holder knows first."""

# -- storage
SEGMENT_BYTES_MAX: Final = 128 << 20
"""A segment's size, by default: small to copy or delete at once, large enough that ten thousand partitions have few
files."""

SEGMENT_BYTES_FLOOR: Final = 64 << 10
SEGMENT_BYTES_CEILING: Final = 4 << 30

JOURNAL_CACHE_BYTES_MAX: Final = 8 << 20
"""Recent frames kept in memory for followers and subscribers that keep up, a partition."""

JOURNAL_CACHES_BYTES_MAX: Final = 256 << 20
"""The same, of all partitions of a broker together: ten thousand of them must not take ten thousand times as much."""

WRITER_PENDING_BYTES_MAX: Final = 256 << 20
"""What may wait for a broker's one writer thread: about a second of a fast disk. Past it appends are refused, not
queued."""

WRITER_PENDING_ORDERS_MAX: Final = 200_000
"""The same for tiny entries, which cost by number, not by size."""
