"""What brokers tell, as the values that applications get and the tables that people see."""
