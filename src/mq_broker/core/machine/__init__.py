"""What the committed journal means: the partition's state (`machine`), and which operations may enter it
(`admission`)."""
