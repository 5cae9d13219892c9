"""
The record: a database that remembers what was promised, so that a queue that lost its memory loses nothing.
"""
