"""What a queue group's settings make of its records. Pure, but for what is declared.

declared       which queue groups a topic has, with their settings
policy         what of the rest these settings need
ready_records  where ready records are, and which of them a request is lent
ordering       the same where records of a key, or all, are worked on one after another; by_level: by priority
group_filter   what a group's filter keeps away; member_filters: what members with filters of their own are lent
dropping       what is lent to nobody, and dropped; expiring: since it is too old; length: since it is too much
"""
