"""Other brokers beside ours: NATS JetStream, RabbitMQ's quorum queues, Redis Streams.

Their rows are among those of `make bench-kafka` (benchmarks/kafka/peers.py).

Servers come as Debian packages, unpacked into a cache without being installed; their Python clients by pip into an
environment of their own. None of it is part of the project.
"""
