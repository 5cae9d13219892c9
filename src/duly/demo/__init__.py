"""
The demonstration: a server, some workers, one of them killed, and a ledger that shows that no job was lost.
"""
