"""Batches in, and batches out by offset, with the columns and rows left out that a reader does not want."""
