"""What it costs to be watched: metrics, the console, the command line, and the instruments on the hot path."""
