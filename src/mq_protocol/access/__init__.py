"""Who may do what, in the words that brokers and clients share: rights of methods, quotas, secrets, PEM files."""
