"""What administrators ask: topics, groups and brokers; rights, tokens and quotas; transactions; a look at records."""
