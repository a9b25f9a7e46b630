"""Taking a journal up after any stop: its name, recovery, quarantine of damage, the data directory that holds it."""
