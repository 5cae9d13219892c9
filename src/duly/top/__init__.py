"""
What `duly top` shows: a look at the queue at a bounded cost, and a picture of it.
"""
