"""
Reports over the history: was it on time, what failed, when was it busy.
"""
