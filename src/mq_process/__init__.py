"""What a process asks of the C library and of gRPC before it moves batches: memory allocator, waiting for sockets."""
