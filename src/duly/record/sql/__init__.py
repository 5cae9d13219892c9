"""
Statements that change many rows at once, one file for each database that has its own way of saying so.
"""
