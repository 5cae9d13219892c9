"""
The way of a database from one version of duly to the next; read by Alembic.
"""
