"""Queue groups: which records of the partition are settled, leased, returned or doomed, for each group.

    ranges       offsets as ascending ranges, and their form on the wire
    offset_set   the settled offsets
    run_map      values of ranges: which lease has a record, what became of it before
    steps        what a `Work` entry is made of
    state        the state of one group in one partition, what each step does to it, and all groups of a partition
    order        which records are worked on one after another
    settling     what becomes of a request to settle; how requests become one entry

Facts alone are here. Who is lent what, and when a lease runs out, is decided elsewhere.
"""
