"""Journals: what a broker keeps, on disk or in memory. Knows entries and their order; not what they mean, nor who leads.

`interface` is the contract. `frame` is an entry as bytes, `snapshot` a partition's state. `journal` is the event loop's side of a
log on disk, `segments` the writer thread's side, `writer` the thread, `shortening` what lets a journal begin later. `opening` takes
a log up after any stop, `recovery` says what of it is good, `aside` takes out what is not, `identity` is its name and what may be
believed of it. `memory` is the journal without a disk. `offset_index` finds a batch by its offset; `directory` owns the broker's
data directory.
"""
