"""Connections: who is accepted at the broker's port, what is spoken there, links to other brokers, calls of them."""
