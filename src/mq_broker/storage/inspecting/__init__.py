"""Looking into the data directory of a broker that does not run: what lies there, whether it is whole, what it says.

Nothing here writes, creates, locks for itself alone, or repairs. What is read may be damaged, or made by an enemy: each
read has a bound, a checksum comes before everything that parses, and nothing raises but `StorageFailed`.
"""
