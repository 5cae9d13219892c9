"""
Commands of manage.py.
"""
