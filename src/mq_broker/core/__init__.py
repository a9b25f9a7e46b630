"""The replication protocol and the partition's state machine. Pure: events in, effects out.

Nothing here knows the clock, chance, threads, sockets, files or logging. The same code runs under asyncio in a broker
(mq_broker.broker), under scripts (tests/mq_broker/core/scripts) and under the simulator (tests/simulation).

The protocol in prose
---------------------

1. A partition is a journal of entries that some brokers, its *replicas*, each keep a copy of. One of them leads. The
   leader alone adds entries; followers take what it sends. What the entries mean is `PartitionMachine`'s affair:
   batches that get offsets, batches that are staged and later published, cursors of groups, decisions of the sink's
   coordinator.

2. Which replica leads, and which replicas are *in sync* (the ISR), stands in one small node per partition in a
   coordination service. It changes only by compare-and-set on its version. The ISR names *logs*, not brokers: a broker
   whose disk was emptied has a new log id and is not meant by the old name.

3. A leadership is numbered by its `leader_epoch`, taken from a successful claim on the node. Every message carries it;
   lower ones are refused. A new leader first writes an `EpochStart`; until that is committed, the end of the log is not
   known.

4. `AppendEntries` names the entry before it. A follower that lacks it answers with a hint where its log could last
   agree, and the leader steps back by whole epochs. A follower cuts its log only where the leader of its epoch shows
   another entry at the same index.

5. A follower acknowledges min(what is flushed, what a message of this epoch proved to be the leader's). The *high
   watermark* is the lowest acknowledged index over every member of every ISR that may be in force, the leader's own
   disk included. What is at or below it is committed: applied, answered, readable, and never lost while one log that
   the node names survives as its durability promises.

6. A leader drops members that are gone or lag and adds those that have caught up, each by compare-and-set; a smaller
   ISR counts only once the write has succeeded, and never gets smaller than `min_insync_replicas`: at that floor the
   high watermark waits.

7. A partition whose named leader is not registered (in that very incarnation) may be claimed by any registered replica
   whose log is named. It asks the others first how far they are, and claims in company: `min_insync_replicas` live
   replicas were heard, itself among them, and no named log is ahead. They wait by rank so that one claims. A log that
   is not named may be longer: what it has more was not committed.

8. An answer that does not come is neither yes nor no. A compare-and-set without an answer is settled by a higher
   version seen, or by a later success on the same version. A client's request without an answer is asked again with the
   same UUID and gets the first answer.

9. A node that is older than what live replicas have seen was put back by somebody who restored the service. Then
   nobody resumes what it says: whoever is farthest of so many that every in-sync set is met leads on, in an epoch above
   all that were seen. Its question ends the epochs below.

10. A journal may be shortened from its beginning: a `Snapshot` stands for what is gone. A follower that lacks the entry
   which the leader's journal begins after is sent the snapshot and begins anew, as another log.

11. The set of replicas may change under a running partition: the leader sends to new ones at once, and waits for a
    former one until the node does not name it any more.

Numbered rules ("rule 6") and traps ("trap 25") in comments are those of DESIGN.md beside this file.

Where to find what
------------------

entries.py, messages.py   what a journal is made of; every event and every effect
replication/replica       the door: routes events to a role
replication/leader        admits, sends, counts, answers;
                          standing_back: how it gives its leadership to another
replication/follower      takes, proves, acknowledges
replication/election      who may claim, and what a claim's answer means; how far the others are, which is asked before
replication/membership    the ISR: confirmed, proposed, maximal; progress: one follower, as its leader sees it
replication/replica_state what outlives a role; log: epochs, sizes and the unapplied tail
replication/peer_admission  which messages of other brokers may reach a replica at all
machine/machine           what the committed journal means; window: the UUIDs seen lately
machine/admission         may this operation enter the journal?
machine/state             the machine's state as a value: a snapshot
work/                     queue groups: the state of one, its steps, and what becomes of requests to settle

What was left out, and why
--------------------------

- Votes and leases. Epochs come from the coordination service, so a partitioned broker cannot disturb a healthy leader.
  What others answer to a candidate binds them to nothing, but after a restoration of that service. Reads from a leader
  that does not know of its successor are of committed entries and therefore old, never wrong.
- Following from a follower. One leader pushes to all; chains would save the leader's bandwidth at the price of a second
  failure mode.
- Choosing a log when no named one is left (rule 15): an operator does, through the state node
  (mq_broker.broker.administration.recovery). The core obeys: a replica that was not chosen starts over.
- What a snapshot is made of on disk, and when a journal is shortened (mq_broker.storage,
  mq_broker.broker.administration.retention). The core says from which state it goes on, and who must be sent one.
"""
