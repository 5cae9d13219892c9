"""
Jobs that ended, chosen by SQL and sent again.
"""
