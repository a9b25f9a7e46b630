"""Dead letters and outputs of queue groups: made, staged, decided by the source's journal, and published."""
