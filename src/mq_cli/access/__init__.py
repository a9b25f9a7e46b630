"""Who may do what, and by which certificates, tokens and keys."""
