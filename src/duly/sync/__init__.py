"""
The blocking twin of an app: for Django, Flask and scripts.
"""
