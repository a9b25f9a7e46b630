"""What this broker last read of the cluster: the brokers that live and the topics."""
