"""What every part of a broker may use, and what knows none of them: memory, threads, streams, periodic work."""
