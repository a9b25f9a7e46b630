"""Work queues measured: three brokers, 3 replicas, every record counted (`make bench-queues`)."""
