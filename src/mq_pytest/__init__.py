"""A pytest plugin: real brokers for the tests of programs that use TritonMQ."""
