"""What security costs, measured beside plain text: `python -m benchmarks.security`."""
