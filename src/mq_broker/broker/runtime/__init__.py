"""What every part of a broker may use, and what knows none of them: bounded memory, threads and streams."""
