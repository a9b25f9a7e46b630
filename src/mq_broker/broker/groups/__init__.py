"""Groups: pushed subscriptions, sharing of partitions among members, cursors."""
