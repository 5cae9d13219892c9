"""
Helpers for frameworks.  Each is imported by who uses it, and by nobody else.
"""
