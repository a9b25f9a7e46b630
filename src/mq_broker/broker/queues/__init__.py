"""Queue groups at a partition's leader: who is lent what, for how long, and what is answered to whom.

declared    which queue groups a topic has, with their settings
declaring   the methods that change and list those
beginning   leaders begin and end the lives of groups
clocks      when leases run out
members     which leases a member has, and which process it is
holdings    what is lent, to whom and for how long
lending     where ready records are, and which of them a request is lent
ordering    the same where records of a key, or all, are worked on one after another
sieve       what a group's filter keeps away
row_reading reads the keys of records, and compares rows with filters
sifting     what members with filters of their own are lent; checked_filters: whether those fit the topic
dropping    what is lent to nobody, and dropped: what has expired, or is too much, or what the sieve does not keep
policy      what of these a group's settings need
requests    what members ask, and are told; draft: what is put into one entry
unsettled   what members ask to settle, until it has an answer
gathering   one group in one partition: requests become entries, several on their way at a time
working     every group of the partitions that are led here
leasing     the methods Lease and Settle
"""
