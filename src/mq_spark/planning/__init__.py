"""What the data source decides without Spark and without brokers: options, offsets, positions."""
