"""Queue groups: records that are lent to members, worked on in any order, and settled one by one."""
