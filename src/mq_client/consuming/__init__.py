"""From pushed and fetched batches to records."""
