"""
Record, queue and history compared: what was promised, what is there, and what happened.
"""
