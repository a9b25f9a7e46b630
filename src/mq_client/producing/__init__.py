"""From rows and tables to acknowledged batches: accumulation, lanes, sending, futures."""
