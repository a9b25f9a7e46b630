"""An open journal, on disk or in memory, with the threads that write, sync and shorten it."""
