"""
The queue over HTTP: a service for any language, and endpoints that answer later.
"""
