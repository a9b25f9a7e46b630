"""gRPC at the broker's edge: the services that clients call, the links between brokers, the calls of one broker to
another.

It turns bytes into messages and errors into statuses, and owns connections. It knows nothing of partitions, storage or
coordination: what a request means is decided by the objects given to `service.handlers` and `links.Links`.
"""
