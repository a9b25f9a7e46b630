"""Journals: what a broker keeps, on disk or in memory. Knows entries and their order; not what they mean, nor who
leads.

`interface`     the contract
`codec`         bytes: an entry as a frame, a partition's state as a snapshot
`journal`       an open journal: the event loop's side, the writer thread and its side, shortening; the journal without
                a disk
`opening`       taking a journal up after any stop: its name, recovery, quarantine of damage; the broker's data
                directory
`offset_index`  finds a batch by its offset
`files`         the file operations that all of it is built on
"""
