"""`make bench-kafka`: TritonMQ and Apache Kafka side by side, in turn, on one machine, in one run.

Kafka, its clients and Spark's connector to it are fetched by Maven and pip into `build/kafka`, and none of it is part
of the project. Every figure is a ratio of things measured one after the other in each round; nothing here asserts a
time.
"""
