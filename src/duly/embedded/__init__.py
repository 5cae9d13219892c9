"""
A Valkey server that belongs to a directory: its first user starts it, and it stops after the last.
"""

from duly.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer"]
