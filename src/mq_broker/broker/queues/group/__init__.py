"""One queue group in one partition, at its leader.

led_group   requests become entries, several on their way at a time; draft: what is put into one entry
choosing    who of those that wait is lent what; waiting: whose turn it is
requests    what members ask, and are told; unsettled: what they ask to settle, until it has an answer
holdings    what is lent, to whom and for how long; clocks: when leases run out
members     which leases a member has, and which process it is; presence: which sessions are there
row_reading reads the keys of records, and compares rows with filters
"""
