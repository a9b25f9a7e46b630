"""What is in a cluster: topics, partitions, groups, queues, transactions, and moving replicas."""
