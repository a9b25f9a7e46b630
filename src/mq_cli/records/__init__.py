"""Records that come in, go out and are worked on, and how they are written as text."""
