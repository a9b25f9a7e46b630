"""What a broker says of itself: one observation, gathered now and then, and its renderings."""
