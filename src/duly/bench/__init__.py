"""
Benchmarks: what this code does on this machine, with the figures it should reach.
"""
