"""Queue groups at a partition's leader: who is lent what, for how long, and what is answered to whom.

clocks      when leases run out
members     which leases a member has, and which process it is
lending     where ready records are, and which of them a request is lent
gathering   one group in one partition: requests become entries, one on its way at a time
working     every group of the partitions that are led here
leasing     the methods Lease and Settle
"""
