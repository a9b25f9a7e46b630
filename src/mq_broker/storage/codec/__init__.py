"""Bytes: an entry as a frame, a partition's state as a snapshot."""
