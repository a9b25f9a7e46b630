"""Reaching a cluster: channels, connections, the brokers that lead, deadlines."""
