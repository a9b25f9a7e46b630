"""The exactly-once sink: decisions, staged batches, aborted keys, and what becomes of them with time."""
