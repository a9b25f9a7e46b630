"""Whole brokers in a test's process, in virtual time: nothing waits, nothing races, and a run is its seed."""
