"""The broker's edge: its port and what is spoken there, the gate before every call, links between brokers, and gRPC.

It turns bytes into messages and errors into answers, and owns connections. It knows nothing of partitions, storage or
coordination: what a request means is decided by the objects given to `service.served` and `links.Links`.
"""
