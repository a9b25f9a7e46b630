"""The main job, end to end, on real parts: `make demo`.

flights.py    the data, and what must come out, computed straight from the files
pipeline.py   the Spark driver: what a user would write
__main__.py   starts everything, kills two things on the way, compares every row
"""
