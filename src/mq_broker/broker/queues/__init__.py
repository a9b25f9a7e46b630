"""Queue groups at a partition's leader: what members ask, and what becomes of each group.

sessions    the method Work; session: one member's; asked: what a member may name
working     every group of the partitions that are led here
beginning   leaders begin and end the lives of groups
declaring   the methods that change and list groups; describing, sweeping: those that show and empty them
idle, stuck groups that nobody uses, and that stand still

Below these, each room imports those below it:

letters/    dead letters and outputs, from the source's journal to the topic that has them
group/      one group in one partition: requests become entries, several on their way at a time
policy/     which groups a topic has, and what their settings make of records: who may be lent which
"""
