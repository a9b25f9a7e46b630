"""Of work queues: their settings, the columns that a queue reads, the keys that its outputs are decided under."""
