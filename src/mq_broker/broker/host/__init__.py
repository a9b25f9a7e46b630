"""The replicas that this broker holds: their events, journals, messages to other brokers, and the loop that steps
them."""
