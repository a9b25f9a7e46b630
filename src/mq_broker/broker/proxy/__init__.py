"""The role `proxy`: a process that is given no partitions, keeps no records and is registered nowhere.

serving    start to end: what it reads of the cluster, what it serves
routing    to which broker a call goes; holds it while its partition has no leader
holding    how much is held
leaders    who leads a partition now
fan_out    subscribers of one partition share one subscription there: a client's stream
tails      a shared subscription at a leader
"""
