"""Journals: what a broker keeps, on disk or in memory. Knows entries and their order; not what they mean, nor who leads.

`interface` is the contract. `frame` is an entry as bytes. `journal` is the event loop's side of a log on disk, `segments` the
writer thread's side, `writer` the thread, `recovery` the opening after a stop, `identity` the log's name and what may be believed
of it. `memory` is the journal without a disk. `offset_index` finds a batch by its offset; `directory` owns the broker's data
directory.
"""
