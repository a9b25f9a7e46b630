"""Topics made, changed and deleted; replicas placed, moved and recovered; retention."""
